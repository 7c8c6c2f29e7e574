"""The LTE network in ns-3: a station, the core network, UEs that walk and fade, a remote host that streams to each of them.

The control is the guaranteed bit rate of a UE's bearer. ns-3 has no procedure to modify a bearer, so the scheduler is
configured by the primitive that such a procedure ends in (CSCHED_LC_CONFIG_REQ of the Small Cell Forum's scheduler interface).
The priority set scheduler serves first those below their guaranteed rate: media with a guarantee arrives (fast), media without
one shares what the guaranteed traffic leaves (slow).

One network per process, as ns-3 is global. See `network_process`.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from safe_psrl_testbed.lte.bindings import load_ns3
from safe_psrl_testbed.lte.fading import fading_trace, write_trace
from safe_psrl_testbed.lte.settings import CellSettings

HEADERS: Final = 28  # bytes of UDP and IP
PORT: Final = 5000
TRACE_SECONDS: Final = 10
BACKGROUND_PACKET: Final = 1000  # bytes
WALKING: Final = 1.0  # metres a second, for the fading; the UEs' own speeds are about that
MAX_REPORT_PERIOD: Final = 1000  # milliseconds between traces, which are not used

SET_GUARANTEE: Final = """
namespace safe_psrl {
void SetGuarantee(ns3::Ptr<ns3::NetDevice> station, ns3::Ptr<ns3::NetDevice> ue, uint64_t bitsPerSecond) {
    using Channel = ns3::LogicalChannelConfigListElement_s;
    auto radio = ns3::DynamicCast<ns3::LteUeNetDevice>(ue)->GetRrc();
    if (radio->GetState() != ns3::LteUeRrc::CONNECTED_NORMALLY) return;  // it has no bearer yet
    auto carriers = ns3::DynamicCast<ns3::LteEnbNetDevice>(station)->GetCcMap();
    auto scheduler = ns3::DynamicCast<ns3::ComponentCarrierEnb>(carriers.at(0))->GetFfMacScheduler();
    Channel channel{};
    channel.m_logicalChannelIdentity = 3;  // the default bearer's
    channel.m_logicalChannelGroup = 1;
    channel.m_direction = Channel::DIR_DL;
    channel.m_qosBearerType = bitsPerSecond > 0 ? Channel::QBT_GBR : Channel::QBT_NON_GBR;
    channel.m_qci = bitsPerSecond > 0 ? 4 : 9;  // buffered video with and without a guarantee
    channel.m_eRabGuaranteedBitrateDl = bitsPerSecond;
    channel.m_eRabMaximulBitrateDl = bitsPerSecond;
    ns3::FfMacCschedSapProvider::CschedLcConfigReqParameters request{};
    request.m_rnti = radio->GetRnti();
    request.m_reconfigureFlag = true;
    request.m_logicalChannelConfigList.push_back(channel);
    scheduler->GetFfMacCschedSapProvider()->CschedLcConfigReq(request);
}
}
"""


class LteNetwork:
    """Media UEs 0 … n - 1, one more that takes the background traffic, and those that join later."""

    def __init__(self, settings: CellSettings) -> None:
        self._settings = settings
        self._ns = ns = load_ns3()
        ns.cppyy.cppdef(SET_GUARANTEE)
        self._set_guarantee = ns.cppyy.gbl.safe_psrl.SetGuarantee
        ns.RngSeedManager.SetSeed(1)
        ns.RngSeedManager.SetRun(settings.seed)
        self._set_defaults()
        with tempfile.TemporaryDirectory(prefix="safe-psrl-fading-") as directory:
            self._helper = self._radio(Path(directory))
            self._host, self._core = self._core_network()
            self._station, self._ues, self._addresses = self._attached_ues()
            self._applications = [self._stream(i) for i in range(settings.ues + 1)]
            self._sinks = [self._sink(i) for i in range(settings.ues)]
            self._run(settings.settle_seconds)  # reads the fading trace
        self._set_guarantee(self._station, self._ues.Get(settings.ues), settings.background_rate)
        self._received = [int(sink.GetTotalRx()) for sink in self._sinks]
        self._epoch = 0
        self._joined = range(0)

    def advance(self, fast: Sequence[bool]) -> list[float]:
        """An epoch in which the UEs get the fast or the slow service; the media units that each of them received."""
        for i, guaranteed in enumerate(fast):
            self._set_guarantee(self._station, self._ues.Get(i), self._settings.unit_rate if guaranteed else 0)
        if self._epoch == self._settings.joining_epoch:
            self._join()
        for i in self._joined:
            self._set_guarantee(self._station, self._ues.Get(i), self._settings.unit_rate)
        self._epoch += 1
        self._run(self._settings.epoch_ms / 1000)
        before, self._received = self._received, [int(sink.GetTotalRx()) for sink in self._sinks]
        unit = self._settings.unit_packets * (self._settings.packet_bytes - HEADERS)
        return [(now - then) / unit for now, then in zip(self._received, before, strict=True)]

    def _join(self) -> None:
        """More UEs attach, each with a stream of its own."""
        first = self._settings.ues + 1
        self._joined = range(first, first + self._settings.joining_ues)
        for i in self._joined:
            self._helper.Attach(self._ues.Get(i), self._station)
            self._applications.append(self._stream(i))

    def _run(self, seconds: float) -> None:
        self._ns.Simulator.Stop(self._ns.Seconds(seconds))
        self._ns.Simulator.Run()

    def _set_defaults(self) -> None:
        ns = self._ns
        number, flag, text = ns.UintegerValue, ns.BooleanValue, ns.StringValue
        for name, value in {
            "LteEnbRrc::SrsPeriodicity": number(320),
            "LteEnbRrc::EpsBearerToRlcMapping": text("RlcUmAlways"),  # late media is useless: no retransmission
            "LteRlcUm::MaxTxBufferSize": number(self._settings.unit_bytes),
            "LteSpectrumPhy::CtrlErrorModelEnabled": flag(False),  # halves the time; data errors stay
            "LteUePhy::RsrpSinrSamplePeriod": number(MAX_REPORT_PERIOD),
            "LteEnbPhy::UeSinrSamplePeriod": number(MAX_REPORT_PERIOD),
        }.items():
            ns.Config.SetDefault(f"ns3::{name}", value)

    def _radio(self, directory: Path) -> Any:
        ns, blocks = self._ns, self._settings.resource_blocks
        helper = ns.CreateObject[ns.LteHelper]()
        helper.SetSchedulerType("ns3::PssFfMacScheduler")
        helper.SetSchedulerAttribute("nMux", ns.UintegerValue(1))  # strictly by priority
        for link in ("DlBandwidth", "UlBandwidth"):
            helper.SetEnbDeviceAttribute(link, ns.UintegerValue(blocks))
        helper.SetAttribute("PathlossModel", ns.StringValue("ns3::LogDistancePropagationLossModel"))
        helper.SetPathlossModelAttribute("Exponent", ns.DoubleValue(3.5))
        generator = np.random.default_rng([self._settings.seed, 1])
        trace = directory / "trace.fad"
        write_trace(fading_trace(generator, blocks, TRACE_SECONDS * 1000, WALKING), trace)
        helper.SetFadingModel("ns3::TraceFadingLossModel")
        for name, value in {
            "TraceFilename": ns.StringValue(str(trace)),
            "TraceLength": ns.TimeValue(ns.Seconds(float(TRACE_SECONDS))),
            "SamplesNum": ns.UintegerValue(TRACE_SECONDS * 1000),
            "WindowSize": ns.TimeValue(ns.Seconds(0.5)),
            "RbNum": ns.UintegerValue(blocks),
        }.items():
            helper.SetFadingModelAttribute(name, value)
        return helper

    def _core_network(self) -> tuple[Any, Any]:
        """The remote host, and the core network that it is connected to."""
        ns = self._ns
        core = ns.CreateObject[ns.PointToPointEpcHelper]()
        self._helper.SetEpcHelper(core)
        hosts = ns.NodeContainer()
        hosts.Create(1)
        ns.InternetStackHelper().Install(hosts)
        link = ns.PointToPointHelper()
        link.SetDeviceAttribute("DataRate", ns.StringValue("1Gb/s"))
        link.SetChannelAttribute("Delay", ns.TimeValue(ns.MilliSeconds(2)))
        addresses = ns.Ipv4AddressHelper()
        addresses.SetBase(ns.Ipv4Address("1.0.0.0"), ns.Ipv4Mask("255.0.0.0"))
        addresses.Assign(link.Install(core.GetPgwNode(), hosts.Get(0)))
        self._routes(hosts.Get(0)).AddNetworkRouteTo(ns.Ipv4Address("7.0.0.0"), ns.Ipv4Mask("255.0.0.0"), 1)
        return hosts.Get(0), core

    def _attached_ues(self) -> tuple[Any, Any, Any]:
        """The station's device, the UEs' devices, and the UEs' addresses. UEs that join later are not attached."""
        ns, helper, radius = self._ns, self._helper, self._settings.radius
        stations, nodes = ns.NodeContainer(), ns.NodeContainer()
        stations.Create(1)
        nodes.Create(self._settings.ues + 1 + self._settings.joining_ues)
        mobility = ns.MobilityHelper()
        mobility.SetMobilityModel("ns3::ConstantPositionMobilityModel")
        mobility.Install(stations)
        mobility.SetPositionAllocator("ns3::UniformDiscPositionAllocator", "rho", ns.DoubleValue(radius))
        mobility.SetMobilityModel(
            "ns3::RandomWalk2dMobilityModel",
            *("Bounds", ns.RectangleValue(ns.Rectangle(-radius, radius, -radius, radius))),
            *("Mode", ns.StringValue("Time"), "Time", ns.StringValue("5s")),
            *("Speed", ns.StringValue("ns3::UniformRandomVariable[Min=0.5|Max=2.0]")),
        )
        mobility.Install(nodes)
        station, ues = helper.InstallEnbDevice(stations).Get(0), helper.InstallUeDevice(nodes)
        ns.InternetStackHelper().Install(nodes)
        addresses = self._core.AssignUeIpv4Address(ues)
        for i in range(nodes.GetN()):
            self._routes(nodes.Get(i)).SetDefaultRoute(self._core.GetUeDefaultGatewayAddress(), 1)
            if i <= self._settings.ues:
                helper.Attach(ues.Get(i), station)
        return station, ues, addresses

    def _stream(self, i: int) -> Any:
        """What the host sends to UE `i`: media at a constant rate, or the background's bursts."""
        ns, settings = self._ns, self._settings
        sender = ns.OnOffHelper("ns3::UdpSocketFactory", self._socket(i))
        if i != settings.ues:
            payload = settings.packet_bytes - HEADERS
            sender.SetConstantRate(ns.DataRate(settings.unit_rate * payload // settings.packet_bytes), payload)
        else:
            sender.SetAttribute("PacketSize", ns.UintegerValue(BACKGROUND_PACKET))
            sender.SetAttribute("DataRate", ns.DataRateValue(ns.DataRate(settings.background_rate)))
            for name, mean in (("OnTime", settings.busy_seconds), ("OffTime", settings.idle_seconds)):
                sender.SetAttribute(name, ns.StringValue(f"ns3::ExponentialRandomVariable[Mean={mean}]"))
        applications = sender.Install(self._host)
        applications.Start(ns.Seconds(0.2))
        return applications

    def _socket(self, i: int) -> Any:
        return self._ns.InetSocketAddress(self._addresses.GetAddress(i), PORT).ConvertTo()

    def _sink(self, i: int) -> Any:
        ns = self._ns
        applications = ns.PacketSinkHelper("ns3::UdpSocketFactory", self._socket(i)).Install(self._ues.Get(i).GetNode())
        applications.Start(ns.Seconds(0.0))
        return applications.Get(0).GetObject[ns.PacketSink]()

    def _routes(self, node: Any) -> Any:
        ns = self._ns
        return ns.Ipv4StaticRoutingHelper().GetStaticRouting(node.GetObject[ns.Ipv4]().__deref__())
