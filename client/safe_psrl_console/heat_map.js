// A grid of coloured cells with its labels; what a cell says is shown below when it is pointed at.
export default {
  template: `
    <figure class="heat-map">
      <svg :viewBox="'0 0 ' + width + ' ' + height" role="img" :aria-label="description" :style="{ maxWidth: width + 'px' }"
        @pointermove="point" @pointerdown="point" @pointerleave="said = ''"
        @click="choose">
        <g class="labels">
          <text v-for="one in rowLabels" :key="'r' + one.at" :x="left - 8" :y="one.at" text-anchor="end" dominant-baseline="central">{{ one.text }}</text>
          <text v-for="one in columnLabels" :key="'c' + one.at" :x="one.at" :y="height - bottom + 16" text-anchor="middle">{{ one.text }}</text>
          <text :x="left + grid.columns * cell.width / 2" :y="height - 4" text-anchor="middle">{{ grid.x }}</text>
          <text :transform="'translate(12 ' + grid.rows * cell.height / 2 + ') rotate(-90)'" text-anchor="middle">{{ grid.y }}</text>
        </g>
        <template v-for="one in cells" :key="one.i">
          <rect :x="one.x" :y="one.y" :width="cell.width - cell.gap" :height="cell.height - cell.gap" :fill="one.colour" :fill-opacity="one.opacity" :rx="cell.gap"
            :class="{ marked: one.marked }" />
          <text v-if="one.text" class="inside" :x="one.x + cell.width / 2 - 0.5" :y="one.y + cell.height / 2" :fill="one.ink"
            text-anchor="middle" dominant-baseline="central">{{ one.text }}</text>
        </template>
      </svg>
      <figcaption aria-live="off">{{ said || grid.hint }}</figcaption>
    </figure>`,

  props: { grid: Object, description: String },
  data: () => ({ said: "", left: 46, bottom: 36 }),

  computed: {
    cell() {
      const { rows, columns } = this.grid;
      const width = Math.min(Math.max(560 / columns, 3), 44);
      const height = Math.min(Math.max(280 / rows, 6), rows < 6 ? 34 : 22);
      return { width, height, gap: Math.min(width, height) > 8 ? 2 : 0.4 };
    },
    width() { return this.left + this.grid.columns * this.cell.width + 8; },
    height() { return this.grid.rows * this.cell.height + this.bottom; },
    cells() {
      const { columns, colours, inks, texts, opacities } = this.grid;
      const marked = new Set(this.grid.marked);
      const roomy = this.cell.width >= 15 && this.cell.height >= 13;
      return colours.map((colour, i) => ({
        i, colour,
        ink: inks[i],
        marked: marked.has(i),
        opacity: opacities ? opacities[i] : 1,
        text: roomy && texts && texts[i].length * 7 < this.cell.width ? texts[i] : "",
        x: this.left + (i % columns) * this.cell.width,
        y: Math.floor(i / columns) * this.cell.height,
      }));
    },
    rowLabels() {
      return this.labels(this.grid.rows, this.cell.height, 14, 0, this.grid.firstRow || 0);
    },
    columnLabels() {
      return this.labels(this.grid.columns, this.cell.width, 26, this.left, this.grid.firstColumn || 0);
    },
  },

  methods: {
    labels(count, size, room, start, first) {
      const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => one * size >= room) || 1000;
      return Array.from({ length: Math.ceil(count / every) }, (_, i) => ({ text: first + i * every, at: start + (i * every + 0.5) * size }));
    },
    place(event) {
      const box = event.currentTarget.getBoundingClientRect();
      const scale = this.width / box.width;
      const column = Math.floor(((event.clientX - box.left) * scale - this.left) / this.cell.width);
      const row = Math.floor(((event.clientY - box.top) * scale) / this.cell.height);
      const inside = column >= 0 && column < this.grid.columns && row >= 0 && row < this.grid.rows;
      return inside ? { row, column } : null;
    },
    point(event) {
      const at = this.place(event);
      this.said = at ? this.grid.says[at.row * this.grid.columns + at.column] : "";
    },
    choose(event) {
      const at = this.place(event);
      if (at) this.$emit("choose", at);
    },
  },
};
