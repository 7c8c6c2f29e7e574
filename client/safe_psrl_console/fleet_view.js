// Every agent in one table that stays fluid with hundreds: only the rows in sight are in the document, and only rows that
// changed are sent. On a narrow screen a row is a card.
const ROW_HEIGHT = 60;
const CARD_HEIGHT = 132;
const OVERSCAN = 8;
const NARROW = "(max-width: 760px)";

const LEVELS = {
  over: { icon: "✕", label: "over budget" },
  near: { icon: "!", label: "near budget" },
  within: { icon: "✓", label: "within budget" },
  unknown: { icon: "–", label: "too early" },
};

const FILTERS = [
  { key: "all", label: "All", test: () => true },
  { key: "over", label: "Over budget", test: (row) => row.level === "over" },
  { key: "near", label: "Near budget", test: (row) => row.level === "near" },
  { key: "within", label: "Within budget", test: (row) => row.level === "within" },
  { key: "active", label: "Active", test: (row) => row.condition === "active" },
  { key: "paused", label: "Paused", test: (row) => row.condition === "paused" },
  { key: "drift", label: "Drift", test: (row) => row.drift },
  { key: "quarantined", label: "Quarantined", test: (row) => row.condition === "quarantined" },
];

const COLUMNS = [
  { key: "name", label: "Agent", descending: false },
  { key: "condition", label: "Condition", descending: true },
  { key: "method", label: "Method", descending: false },
  { key: "episode", label: "Episode", descending: true, number: true },
  { key: "share", label: "Cost of budget", descending: true },
  { key: "predicted", label: "Predicted", descending: true, number: true },
  { key: "reward", label: "Reward", descending: true, number: true },
];

const collator = new Intl.Collator(undefined, { numeric: true });
const compare = (a, b) => (typeof a === "string" ? collator.compare(a, b) : a - b);

export default {
  template: `
    <div class="fleet" :class="{ stale }">
      <section class="headline" :class="'is-' + headline.level" aria-live="polite" data-testid="headline">
        <span class="badge" aria-hidden="true">{{ levels[headline.level].icon }}</span>
        <div class="answer">
          <h1>{{ headline.title }}</h1>
          <p v-if="headline.worst">
            {{ headline.lead }}: <a :href="link(headline.worst)">{{ headline.worst }}</a>, {{ headline.detail }}
          </p>
          <p v-else-if="headline.detail">{{ headline.detail }}</p>
        </div>
        <figure v-if="known.length" class="strip">
          <svg viewBox="0 0 120 30" preserveAspectRatio="none" role="img" :aria-label="stripLabel">
            <rect x="0" y="4" width="100" height="22" class="zone-within" />
            <rect x="100" y="4" width="20" height="22" class="zone-over" />
            <path v-for="(path, level) in strip" :key="level" :d="path" :class="'tick is-' + level" />
            <line x1="100" x2="100" y1="0" y2="30" class="limit" />
          </svg>
          <figcaption><span>0 %</span> <span>cost, of the budget</span> <span class="at-limit">100 %</span></figcaption>
        </figure>
      </section>

      <div v-if="rows.size" class="tools">
        <label class="search">
          <span class="visually-hidden">Search agents</span>
          <svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="10.5" cy="10.5" r="6.5" /><path d="m15.5 15.5 5 5" /></svg>
          <input ref="search" v-model="query" type="search" placeholder="Search agents" autocomplete="off" spellcheck="false"
            @keydown.esc="clearSearch" />
          <kbd aria-hidden="true">/</kbd>
        </label>
        <div class="chips" role="group" aria-label="Show">
          <button v-for="one in chips" :key="one.key" type="button" :class="'chip is-' + one.key"
            :aria-pressed="filter === one.key" :data-filter="one.key" @click="filter = one.key">
            {{ one.label }} <b>{{ one.count }}</b>
          </button>
        </div>
        <label class="sorting">
          Sort by
          <select v-model="sort" @change="descending = column(sort).descending">
            <option v-for="one in columns" :key="one.key" :value="one.key">{{ one.label }}</option>
          </select>
        </label>
      </div>

      <div v-if="rows.size" class="table" role="table" aria-label="Agents" :aria-rowcount="order.length + 1"
        @pointerenter="hold = true" @pointerleave="hold = false">
        <div class="agent-row head" role="row" aria-rowindex="1">
          <div v-for="one in columns" :key="one.key" role="columnheader" :class="'cell-' + one.key" :aria-sort="sorted(one)">
            <button type="button" @click="sortBy(one)">{{ one.label }}<i aria-hidden="true">{{ arrow(one) }}</i></button>
          </div>
        </div>
        <div ref="body" class="body" role="rowgroup" :style="{ height: order.length * rowHeight + 'px' }"
          @keydown.down.prevent="move(1)" @keydown.up.prevent="move(-1)">
          <div v-for="(row, i) in shown" :key="row.name" class="agent-row" role="row" :aria-rowindex="first + i + 2"
            :data-agent="row.name" :data-level="row.level"
            :style="{ transform: 'translateY(' + (first + i) * rowHeight + 'px)', height: rowHeight + 'px' }">
            <div role="cell" class="cell-name"><a :href="link(row.name)" :title="row.name">{{ row.name }}</a></div>
            <div role="cell" class="cell-condition">
              <span :class="'condition is-' + row.condition" :title="row.reason">{{ row.condition }}</span>
              <span v-if="row.drift" class="condition is-drift" title="Drift was detected within the last day">drift</span>
            </div>
            <div role="cell" class="cell-method">{{ row.method }}</div>
            <div role="cell" class="cell-episode number"><span class="caption">episode </span>{{ whole(row.episode) }}</div>
            <div role="cell" class="cell-share">
              <div class="gauge" :class="'is-' + row.level" :title="gaugeTitle(row)">
                <div class="track"><i :style="{ width: Math.min(row.share / 1.2, 1) * 100 + '%' }"></i><s></s></div>
                <span class="figures">
                  <template v-if="row.level !== 'unknown'">
                    <b>{{ row.cost.toFixed(2) }}</b> of {{ short(row.budget) }}<span v-if="row.several" class="which">{{ row.constraint }}</span>
                    <em><span aria-hidden="true">{{ levels[row.level].icon }}</span> {{ percent(row.share) }}
                      <span class="visually-hidden">{{ levels[row.level].label }}</span></em>
                  </template>
                  <em v-else>{{ row.condition === 'quarantined' ? 'not readable' : 'too early' }}</em>
                </span>
              </div>
            </div>
            <div role="cell" class="cell-predicted number" title="Expected cost of the latest plan">
              <span class="caption">predicted </span>{{ figure(row.predicted) }}</div>
            <div role="cell" class="cell-reward number" :title="rewardTitle(row)"><span class="caption">reward </span>{{ figure(row.reward) }}</div>
          </div>
        </div>
        <div v-if="!order.length" class="nothing" role="status">
          No agent matches. <button type="button" class="plain" @click="showAll">Show all {{ rows.size }}</button>
        </div>
      </div>

      <section v-else-if="loaded" class="empty" data-testid="empty">
        <h2>No agents yet</h2>
        <p>An agent appears here as soon as it is created:</p>
        <pre><code>safe-psrl agent create buffer --preset streaming-buffer --target {{ target }}
safe-psrl simulate streaming-buffer --agent buffer --target {{ target }}</code></pre>
      </section>
      <section v-else class="loading" aria-busy="true" data-testid="loading">
        <div v-for="i in 6" :key="i" class="bone"></div>
        <span class="visually-hidden">Waiting for the service</span>
      </section>
    </div>`,

  props: { target: String },

  data() {
    const asked = new URLSearchParams(location.search);
    const known = (list, key, otherwise) => (list.some((one) => one.key === key) ? key : otherwise);
    return {
      rows: Vue.shallowReactive(new Map()),
      headline: { level: "unknown", title: "Waiting for the service", detail: "", worst: "" },
      loaded: false,
      stale: false,
      query: asked.get("q") || "",
      filter: known(FILTERS, asked.get("show"), "all"),
      sort: known(COLUMNS, asked.get("sort"), "share"),
      descending: asked.get("order") ? asked.get("order") === "down" : true,
      order: [],
      hold: false,
      narrow: matchMedia(NARROW).matches,
      first: 0,
      last: 40,
      levels: LEVELS,
      columns: COLUMNS,
    };
  },

  computed: {
    rowHeight() {
      return this.narrow ? CARD_HEIGHT : ROW_HEIGHT;
    },
    shown() {
      return this.order.slice(this.first, this.last).map((name) => this.rows.get(name)).filter(Boolean);
    },
    chips() {
      const rows = [...this.rows.values()];
      const counted = FILTERS.map((one) => ({ ...one, count: rows.filter(one.test).length }));
      return counted.filter((one) => one.count || one.key === this.filter || one.key === "all");
    },
    known() {
      return [...this.rows.values()].filter((row) => row.level !== "unknown");
    },
    strip() {
      // One path for each level, however many agents there are.
      const paths = { within: "", near: "", over: "" };
      for (const row of this.known) paths[row.level] += `M${Math.min(Math.max(row.share * 100, 0.6), 119.4).toFixed(1)} 7V23`;
      return paths;
    },
    stripLabel() {
      const count = (level) => this.known.filter((row) => row.level === level).length;
      return `${count("within")} within budget, ${count("near")} near budget, ${count("over")} over budget`;
    },
  },

  watch: {
    query() { this.arrange(true); },
    filter() { this.arrange(true); },
    sort() { this.arrange(true); },
    descending() { this.arrange(true); },
  },

  mounted() {
    this.onScroll = () => this.see();
    this.onKey = (event) => this.shortcut(event);
    this.media = matchMedia(NARROW);
    this.onMedia = () => { this.narrow = this.media.matches; this.$nextTick(this.see); };
    addEventListener("scroll", this.onScroll, { passive: true });
    addEventListener("resize", this.onScroll, { passive: true });
    addEventListener("keydown", this.onKey);
    this.media.addEventListener("change", this.onMedia);
    this.$emit("ready");
  },

  unmounted() {
    removeEventListener("scroll", this.onScroll);
    removeEventListener("resize", this.onScroll);
    removeEventListener("keydown", this.onKey);
    this.media.removeEventListener("change", this.onMedia);
  },

  methods: {
    // --- called by the server

    apply(update) {
      if (update.anew) this.rows.clear();
      for (const name of update.deleted) this.rows.delete(name);
      for (const row of update.rows) this.rows.set(row.name, Object.freeze(row));
      this.headline = update.headline;
      this.loaded = update.loaded;
      this.stale = update.stale;
      const over = this.known.filter((row) => row.level === "over").length;
      document.title = (update.stale ? "? " : over ? `(${over} over budget) ` : "") + "Safe PSRL";
      this.arrange(false);
    },

    // --- what is shown, and in which order

    arrange(asked) {
      const test = FILTERS.find((one) => one.key === this.filter).test;
      const wanted = this.query.trim().toLowerCase();
      const fits = (row) => row && test(row) && (!wanted || row.name.toLowerCase().includes(wanted));
      const matching = [...this.rows.values()].filter(fits);
      const held = !asked && (this.hold || this.$refs.body?.contains(document.activeElement));
      this.order = held ? this.keptOrder(matching, fits) : this.sorting(matching).map((row) => row.name);
      if (asked) this.rememberInAddress();
      this.$nextTick(this.see);
    },
    keptOrder(matching, fits) {
      // Rows do not move away under a pointer or from under the focus.
      const kept = this.order.filter((name) => fits(this.rows.get(name)));
      const known = new Set(kept);
      return [...kept, ...matching.map((row) => row.name).filter((name) => !known.has(name))];
    },
    sorting(rows) {
      const sign = this.descending ? -1 : 1;
      const key = this.sort;
      return rows.sort((a, b) => sign * compare(a[key], b[key]) || compare(a.name, b.name));
    },
    see() {
      const body = this.$refs.body;
      if (!body) return;
      const above = -body.getBoundingClientRect().top;
      this.first = Math.max(0, Math.floor(above / this.rowHeight) - OVERSCAN);
      this.last = Math.ceil((above + innerHeight) / this.rowHeight) + OVERSCAN;
    },
    rememberInAddress() {
      const asked = new URLSearchParams();
      if (this.query) asked.set("q", this.query);
      if (this.filter !== "all") asked.set("show", this.filter);
      if (this.sort !== "share" || !this.descending) asked.set("sort", this.sort);
      if (asked.has("sort")) asked.set("order", this.descending ? "down" : "up");
      history.replaceState(history.state, "", asked.size ? "?" + asked : location.pathname);
    },
    column(key) {
      return COLUMNS.find((one) => one.key === key);
    },
    sortBy(column) {
      this.descending = this.sort === column.key ? !this.descending : column.descending;
      this.sort = column.key;
    },
    sorted(column) {
      return this.sort !== column.key ? null : this.descending ? "descending" : "ascending";
    },
    arrow(column) {
      return this.sort !== column.key ? "" : this.descending ? " ↓" : " ↑";
    },
    showAll() {
      this.query = "";
      this.filter = "all";
    },

    // --- keyboard

    shortcut(event) {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && this.$refs.search) {
        event.preventDefault();
        this.$refs.search.focus();
        this.$refs.search.select();
      }
    },
    clearSearch(event) {
      if (this.query) this.query = "";
      else event.target.blur();
    },
    async move(by) {
      const name = document.activeElement.closest?.("[data-agent]")?.dataset.agent;
      const next = this.order[this.order.indexOf(name) + by];
      if (name === undefined || next === undefined) return;
      let row = this.rowOf(next);
      if (!row) {
        scrollBy(0, by * this.rowHeight * OVERSCAN);
        this.see();
        await this.$nextTick();
        row = this.rowOf(next);
      }
      row?.querySelector("a").focus();
    },
    rowOf(name) {
      return [...this.$refs.body.children].find((row) => row.dataset.agent === name);
    },

    // --- figures

    link(name) {
      return "/agent/" + name.split("/").map(encodeURIComponent).join("/");
    },
    whole(value) {
      return value.toLocaleString("en");
    },
    short(value) {
      return Number(value.toPrecision(4)).toLocaleString("en");
    },
    figure(value) {
      if (value === null || value === undefined) return "–";
      const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : 2;
      return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    },
    percent(share) {
      const near = Math.abs(share - 1) < 0.01; // 99.7 % is not 100 %
      return (share * 100).toFixed(near ? 1 : 0) + " %";
    },
    gaugeTitle(row) {
      if (row.level === "unknown") return row.reason || "Fewer than 20 episodes are completed";
      const mean = `mean cost of the last ${row.recentEpisodes} episodes ${row.cost.toFixed(3)}`;
      const predicted = `the latest plan predicts ${row.predicted.toFixed(3)}`;
      return `${row.constraint}: ${mean}, budget ${this.short(row.budget)}; ${predicted}; ${LEVELS[row.level].label}`;
    },
    rewardTitle(row) {
      return row.reward === null ? "" : `Mean of the last ${row.recentEpisodes} episodes; the latest plan predicts ${this.figure(row.predictedReward)}`;
    },
  },
};
