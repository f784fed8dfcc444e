//! The host device with what a captured token needs: launches are written down and repeated, experts fetched, and faults found as on a
//! GPU, when the host waits.
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use assay_engine::bank::HostBank;
use assay_engine::device::host::HostDevice;
use assay_engine::device::kernel::{EXPERT_ABSENT, TeamWork};
use assay_engine::device::{
    Buffer, Device, DeviceError, DeviceKind, DownloadId, Event, GraphId, Kernel, Launch, LinkCounters, Span, Stream,
    Upload,
};
use bytemuck::Pod;

pub struct Capturing {
    inner: HostDevice,
    bank: Option<Arc<HostBank>>,
    capturing: bool,
    launches: Vec<(Kernel, Launch)>,
    graphs: Vec<Vec<(Kernel, Launch)>>,
    /// The first thing that was found wrong, and in which replay.
    fault: Option<(usize, DeviceError)>,
    /// Bytes, and the replays before them.
    downloads: [Option<(Vec<u8>, usize)>; 2],
    /// Whether the host is quick: what is wrong behind a download that it waits for is not found yet.
    pub quick: bool,
    /// What was asked for: `q` for a graph, `w` for waiting for its download, `d` for discarding that.
    pub log: String,
    /// Graphs that were replayed.
    pub replays: usize,
    /// Replays that find a NaN, counted from 1.
    pub faults_at: BTreeSet<usize>,
    /// What the host's threads were hired for. They compute nothing: what is theirs is copied too, and counted apart.
    pub team: Option<TeamWork>,
    by_host: u64,
    /// Whether the next request of a token stays without an answer.
    pub silent: bool,
    /// How much longer a copy takes, and a layer whose cold experts the host has no share in.
    pub fetch_takes: Duration,
    /// How long they are said to take for an expert, and have taken.
    pub host_takes: Duration,
    host_time: Duration,
}

impl Capturing {
    pub fn new(inner: HostDevice) -> Self {
        let (launches, graphs) = (Vec::new(), Vec::new());
        let (bank, fault, faults_at) = (None, None, BTreeSet::new());
        let (downloads, log) = ([None, None], String::new());
        Self {
            inner,
            bank,
            capturing: false,
            launches,
            graphs,
            fault,
            downloads,
            quick: false,
            log,
            replays: 0,
            faults_at,
            team: None,
            by_host: 0,
            fetch_takes: Duration::ZERO,
            host_takes: Duration::ZERO,
            host_time: Duration::ZERO,
            silent: false,
        }
    }

    fn check_fault(&mut self) -> Result<(), DeviceError> {
        self.fault.take().map_or(Ok(()), |(_, error)| Err(error))
    }

    fn read<T: Pod>(&mut self, from: Span<T>) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::zeroed(); from.len()];
        self.inner.download(from.as_bytes(), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn run(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        let Kernel::FetchExperts { ids, resident, bank_start, expert_bytes, landing, table, team } = kernel else {
            return self.inner.launch(kernel, how);
        };
        let (ids, resident, landing) = (self.read(ids)?, self.read(resident)?, self.read(landing)?);
        let (bank, mut landing, mut addresses) = (self.bank.clone().unwrap(), landing.into_iter(), resident.clone());
        let cold: Vec<usize> =
            ids.into_iter().map(|id| id as usize).filter(|&id| resident[id] == EXPERT_ABSENT).collect();
        if let Some(share) = team {
            let work = self.team.as_ref().expect("a team that was hired");
            assert_eq!((work.layers[share.layer].bank_start, work.expert.bytes), (bank_start, expert_bytes));
            let experts = self.read(share.by_host)?[cold.len()];
            self.by_host += u64::from(experts);
            self.host_time += self.host_takes * experts;
            if std::mem::take(&mut self.silent) {
                self.fault.get_or_insert((self.replays, DeviceError::HostSilent { layer: share.layer }));
            }
        } else if !cold.is_empty() {
            std::thread::sleep(self.fetch_takes);
        }
        for id in cold {
            addresses[id] = landing.next().unwrap();
            let start = bank_start + id * expert_bytes;
            self.inner.copy_from_bank(&bank, start..start + expert_bytes, Span::new(addresses[id], expert_bytes))?;
        }
        self.inner.synchronize()?;
        self.inner.upload(bytemuck::cast_slice(&addresses), table.as_bytes())
    }
}

impl Device for Capturing {
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn budget(&self) -> u64 {
        self.inner.budget()
    }
    fn free_bytes(&self) -> u64 {
        self.inner.free_bytes()
    }
    fn take_low_water(&mut self) -> u64 {
        self.inner.take_low_water()
    }
    fn allocate(&mut self, bytes: u64, label: &'static str) -> Result<Buffer, DeviceError> {
        self.inner.allocate(bytes, label)
    }
    fn free(&mut self, buffer: Buffer) {
        self.inner.free(buffer);
    }
    fn adopt_bank(&mut self, bank: &Arc<HostBank>) -> Result<(), DeviceError> {
        self.bank = Some(bank.clone());
        self.inner.adopt_bank(bank)
    }
    fn copy_from_bank(&mut self, bank: &Arc<HostBank>, source: Range<usize>, to: Span<u8>) -> Result<(), DeviceError> {
        std::thread::sleep(self.fetch_takes);
        self.inner.copy_from_bank(bank, source, to)
    }
    fn upload(&mut self, bytes: &[u8], to: Span<u8>) -> Result<(), DeviceError> {
        self.inner.upload(bytes, to)
    }
    fn download(&mut self, from: Span<u8>, to: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.download(from, to)?;
        self.check_fault()
    }
    fn begin_uploads(&mut self, groups: Vec<Vec<Upload>>) -> Result<(), DeviceError> {
        self.inner.begin_uploads(groups)
    }
    fn await_upload(&mut self, group: usize) -> Result<(), DeviceError> {
        self.inner.await_upload(group)
    }
    fn launch(&mut self, kernel: Kernel, how: Launch) -> Result<(), DeviceError> {
        if self.capturing {
            self.launches.push((kernel, how));
            return Ok(());
        }
        self.run(kernel, how)
    }
    fn record(&mut self, stream: Stream) -> Result<Event, DeviceError> {
        self.inner.record(stream)
    }
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.inner.wait(stream, event)
    }
    fn fetches(&self) -> bool {
        true
    }
    fn hire(&mut self, work: TeamWork) -> Result<bool, DeviceError> {
        self.team = (work.threads > 0).then_some(work);
        Ok(self.team.is_some())
    }
    fn dismiss(&mut self) {
        self.team = None;
    }
    fn time_team(&mut self, layer: usize, experts: &[u32]) -> Result<Duration, DeviceError> {
        let work = self.team.as_ref().expect("a team that was hired");
        assert!(layer < work.layers.len() && experts.iter().all(|&expert| (expert as usize) < work.num_experts));
        Ok(Duration::from_nanos(experts.len() as u64))
    }
    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        self.capturing = true;
        Ok(())
    }
    fn end_capture(&mut self) -> Result<GraphId, DeviceError> {
        self.capturing = false;
        self.graphs.push(std::mem::take(&mut self.launches));
        Ok(GraphId(self.graphs.len() - 1))
    }
    fn replay(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        self.replays += 1;
        self.log.push('q');
        for (kernel, how) in self.graphs[graph.0].clone() {
            if let Err(error) = self.run(kernel, how) {
                self.fault.get_or_insert((self.replays, error));
            }
        }
        if self.faults_at.contains(&self.replays) {
            let found = DeviceError::Data { what: "a NaN where a decision depends on it", index: self.replays as u32 };
            self.fault.get_or_insert((self.replays, found));
        }
        Ok(())
    }
    fn begin_download(&mut self, from: Span<u8>) -> Result<DownloadId, DeviceError> {
        let bytes = self.read(from)?;
        let place = self.downloads.iter().position(Option::is_none).unwrap();
        self.downloads[place] = Some((bytes, self.replays));
        Ok(DownloadId(place))
    }
    fn finish_download(&mut self, download: DownloadId, to: &mut [u8]) -> Result<(), DeviceError> {
        self.log.push('w');
        let (bytes, replays) = self.downloads[download.0].take().unwrap();
        to.copy_from_slice(&bytes);
        match self.fault {
            Some((replay, _)) if self.quick && replay > replays => Ok(()),
            _ => self.check_fault(),
        }
    }
    fn discard_download(&mut self, download: DownloadId) -> Result<(), DeviceError> {
        self.log.push('d');
        self.downloads[download.0].take().unwrap();
        self.fault = None;
        Ok(())
    }
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.inner.synchronize()?;
        self.check_fault()
    }
    fn abandon(&mut self) {
        self.capturing = false;
        self.fault = None;
        self.downloads = [None, None];
        self.inner.abandon();
    }
    fn link(&self) -> LinkCounters {
        LinkCounters { by_host: self.by_host, host_time: self.host_time, ..self.inner.link() }
    }
}
