//! Building: what is left behind, who waits for whom, what is refused.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use super::super::build::build_through;
use super::super::source::CheckpointExperts;
use super::super::*;
use super::support::{EXPERTS, HIDDEN, INTERMEDIATE, Model, names};

const AMAX: Encoding = Encoding::Int4(QuantizeMethod::Amax);

fn lock_name(path: &Path) -> String {
    format!("{}.lock", path.file_name().unwrap().to_str().unwrap())
}

/// Nothing but the lock file is beside where the cache would be.
fn assert_nothing_left(path: &Path) {
    assert_eq!(names(path.parent().unwrap()), [lock_name(path)]);
}

#[test]
fn what_is_built_is_what_is_read() {
    let model = Model::synthetic(1);
    for encoding in Encoding::ALL {
        let (identity, path, report) = model.build(encoding);
        assert!(report.built && report.layers.len() == 2);
        assert_eq!(fs::metadata(&path).unwrap().len(), report.bytes);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(name, format!("synthetic-{encoding}-{}-l2.experts", &identity.source_digest()[..16]));
        assert_eq!(path.parent().unwrap(), model.folder.path().join("cache"));
        verify(&path, &|_| ()).unwrap();

        let cache = ExpertCache::open(&path, &identity).unwrap();
        let mut all = vec![0xaa; cache.payload_bytes() as usize];
        cache.read_all(&mut all, &|_| ()).unwrap();
        let indices: Vec<usize> = cache.layers().iter().map(|record| record.layer).collect();
        assert_eq!(indices, [0, 2]);
        for record in cache.layers() {
            assert_eq!(record.offset % 4096, 0);
            let mut layer = vec![0; record.bytes()];
            cache.read_layer(record.layer, &mut layer).unwrap();
            let start = record.offset as usize;
            assert_eq!(layer, all[start..start + layer.len()]);
            let last = record.expert_offset(EXPERTS - 1).unwrap();
            assert_eq!(last, record.offset + ((EXPERTS - 1) * record.expert_bytes) as u64);
            assert_eq!(record.expert_offset(EXPERTS), None);
        }
        assert_eq!(cache.expert_layout(1), None);
        assert_eq!(cache.expert_layout(2).unwrap(), identity.layers[1].expert);

        let about = info(&path).unwrap();
        assert_eq!((about.file_bytes, about.payload_bytes), (report.bytes, all.len() as u64));
        assert_eq!(&about.header, cache.header());
        // What it says of itself can be printed and read back.
        let json = serde_json::to_string(&about.header).unwrap();
        assert_eq!(serde_json::from_str::<Header>(&json).unwrap(), about.header);
    }
}

/// These bytes are in files on users' disks; the hashes are those of a second implementation, in Python. Whoever changes them changes `LAYOUT_VERSION` or `FORMAT_VERSION` too.
#[test]
fn the_packed_bytes_of_known_weights_do_not_change() {
    let model = Model::synthetic(1);
    let hashes = Encoding::ALL.map(|encoding| {
        let (_, path, _) = model.build(encoding);
        info(&path).unwrap().header.layers[0].sha256[..16].to_owned()
    });
    assert_eq!(hashes, GOLDEN);
}

const GOLDEN: [&str; 4] = ["f92a63aacd073723", "56cf3a33d93a0531", "b4bb5e373dac764a", "b4e2e69c2ac208bf"];

#[test]
fn threads_do_not_change_a_byte() {
    let model = Model::synthetic(2);
    let identity = model.identity(Encoding::Int4(QuantizeMethod::Search));
    let files = [1, 2, 5].map(|threads| {
        let path = model.folder.path().join(format!("{threads}.experts"));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = BuildOptions::default();
        let report =
            pool.install(|| build(&model.checkpoint, &model.spec, &identity, &path, &options, |_, _| ()).unwrap());
        (fs::read(&path).unwrap(), report.layers)
    });
    assert!(files[0] == files[1] && files[1] == files[2]);
}

#[test]
fn a_second_builder_waits_and_finds_the_file() {
    let model = Model::synthetic(3);
    let identity = model.identity(AMAX);
    let path = model.path(&identity);
    let (locked_sender, locked) = mpsc::channel();
    let (waits_sender, waits) = mpsc::channel();
    let (first, second) = std::thread::scope(|scope| {
        let (model, identity, path) = (&model, &identity, &path);
        let first = scope.spawn(move || {
            let mut held = false;
            let progress = |_, _| {
                // Under the lock: let the second one come, and go on when it waits.
                if !std::mem::replace(&mut held, true) {
                    locked_sender.send(()).unwrap();
                    waits.recv().unwrap();
                }
            };
            build(&model.checkpoint, &model.spec, identity, path, &BuildOptions::default(), progress).unwrap()
        });
        locked.recv().unwrap();
        let on_wait = |lock: &Path| waits_sender.send(lock.to_owned()).unwrap();
        let options = BuildOptions { on_wait: Some(&on_wait), ..BuildOptions::default() };
        let second = build(&model.checkpoint, &model.spec, identity, path, &options, |_, _| ()).unwrap();
        (first.join().unwrap(), second)
    });
    assert!(first.built && !second.built);
    assert_eq!(first.bytes, second.bytes);
    assert_eq!(second.layers, []);
    verify(&path, &|_| ()).unwrap();
}

#[test]
fn a_builder_that_waits_can_be_cancelled() {
    let model = Model::synthetic(3);
    let identity = model.identity(AMAX);
    let path = model.folder.path().join("held.experts");
    let lock = File::create(model.folder.path().join("held.experts.lock")).unwrap();
    lock.lock().unwrap();
    let cancel = AtomicBool::new(false);
    let on_wait = |_: &Path| cancel.store(true, Ordering::Relaxed);
    let options = BuildOptions { replace: false, cancel: Some(&cancel), on_wait: Some(&on_wait) };
    let error = build(&model.checkpoint, &model.spec, &identity, &path, &options, |_, _| ()).unwrap_err();
    assert!(matches!(error, CacheError::Cancelled { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn cancelling_leaves_nothing() {
    let model = Model::synthetic(4);
    let identity = model.identity(AMAX);
    let path = model.path(&identity);
    let cancel = AtomicBool::new(false);
    let options = BuildOptions { cancel: Some(&cancel), ..BuildOptions::default() };
    let progress = |done, _| cancel.store(done > 0, Ordering::Relaxed);
    let error = build(&model.checkpoint, &model.spec, &identity, &path, &options, progress).unwrap_err();
    assert!(matches!(error, CacheError::Cancelled { .. }), "{error}");
    assert_nothing_left(&path);
}

/// The child ends without unwinding, as by a signal: the lock is released, only `.tmp` stays, and the next build replaces it.
#[test]
fn a_builder_that_dies_leaves_no_file_and_no_lock() {
    const VARIABLE: &str = "ASSAY_TEST_BUILD_AND_ABORT";
    let model = Model::synthetic(5);
    let identity = model.identity(AMAX);
    if let Some(path) = std::env::var_os(VARIABLE) {
        let abort = |done, _| {
            if done > 0 {
                std::process::abort();
            }
        };
        let path = Path::new(&path);
        let _ = build(&model.checkpoint, &model.spec, &identity, path, &BuildOptions::default(), abort);
        return;
    }
    let path = model.path(&identity);
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "expert_cache::tests::build::a_builder_that_dies_leaves_no_file_and_no_lock"])
        .env(VARIABLE, &path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
    let lock = lock_name(&path);
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(names(path.parent().unwrap()), [lock.clone(), format!("{name}.tmp")]);
    let (_, _, report) = model.build(AMAX);
    assert!(report.built);
    assert_eq!(names(path.parent().unwrap()), [name, lock]);
    verify(&path, &|_| ()).unwrap();
}

/// A disk with room for `left` bytes, whose last write is cut short, as a real one's is.
struct FullDisk {
    file: File,
    left: usize,
}

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 && !bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let count = self.file.write(&bytes[..bytes.len().min(self.left)])?;
        self.left -= count;
        Ok(count)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for FullDisk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn a_full_disk_is_an_error_that_leaves_nothing() {
    let model = Model::synthetic(6);
    let identity = model.identity(AMAX);
    let path = model.path(&identity);
    let attempt = |left| {
        let wrap = |file| FullDisk { file, left };
        let options = BuildOptions::default();
        build_through(&CheckpointExperts(&model.checkpoint), &model.spec, &identity, &path, &options, |_, _| (), wrap)
    };
    let complete = attempt(usize::MAX).unwrap().bytes as usize;
    fs::remove_file(&path).unwrap();
    // The header is written twice: zeros first.
    let header = complete - identity.layers.len() * identity.layers[0].expert.bytes.next_multiple_of(4096);
    assert!(header > 0);
    for left in [0, 1, 4095, 4096, 5000, complete / 2, complete - 1, complete, complete + 1] {
        let error = attempt(left).unwrap_err();
        let CacheError::Io { action, source, .. } = &error else { panic!("{error}") };
        assert_eq!((*action, source.kind()), ("write", io::ErrorKind::StorageFull), "{left} bytes: {error}");
        assert_nothing_left(&path);
    }
}

#[test]
fn a_file_of_something_else_is_replaced_only_on_request() {
    let model = Model::synthetic(7);
    let identity = model.identity(AMAX);
    let path = model.path(&identity);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "somebody's notes").unwrap();
    let run = |replace| {
        let options = BuildOptions { replace, ..BuildOptions::default() };
        build(&model.checkpoint, &model.spec, &identity, &path, &options, |_, _| ())
    };
    let error = run(false).unwrap_err();
    assert!(matches!(error, CacheError::Malformed { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"somebody's notes");
    assert!(run(true).unwrap().built);
    assert!(!run(false).unwrap().built);
    assert!(run(true).unwrap().built);
    verify(&path, &|_| ()).unwrap();
}

#[test]
fn a_weight_that_is_not_finite_is_named() {
    let name = "model.layers.2.mlp.experts.1.up_proj.weight";
    let model = Model::with(8, |tensor, values| {
        if tensor == name {
            values[3 * HIDDEN + 7] = f32::NAN;
        }
    });
    for encoding in Encoding::ALL {
        let identity = model.identity(encoding);
        let path = model.path(&identity);
        let options = BuildOptions::default();
        let error = build(&model.checkpoint, &model.spec, &identity, &path, &options, |_, _| ()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(&(3 * HIDDEN + 7).to_string()), "{text}");
        fs::remove_file(format!("{}.lock", path.display())).unwrap();
        assert_eq!(names(path.parent().unwrap()), [""; 0]);
    }
}

#[test]
fn zero_experts_stay_zero() {
    let model = Model::with(9, |tensor, values| {
        if tensor.contains("experts.0.") {
            values.fill(0.0);
        }
    });
    for encoding in Encoding::ALL {
        let (identity, path, _) = model.build(encoding);
        verify(&path, &|_| ()).unwrap();
        let cache = ExpertCache::open(&path, &identity).unwrap();
        let layout = cache.expert_layout(0).unwrap();
        let mut layer = vec![0; cache.layers()[0].bytes()];
        cache.read_layer(0, &mut layer).unwrap();
        let mut values = vec![1.0; INTERMEDIATE * HIDDEN];
        let unpack = match encoding {
            Encoding::Bf16 => assay_kernels::layout::unpack_bf16,
            Encoding::Int4(_) => assay_kernels::layout::unpack_int4,
            Encoding::Int8 => assay_kernels::layout::unpack_int8,
        };
        unpack(&layer[layout.gate()], INTERMEDIATE, HIDDEN, &mut values).unwrap();
        assert!(values.iter().all(|value| value.to_bits() == 0));
    }
}

#[test]
fn a_model_of_another_shape_is_refused() {
    let model = Model::synthetic(10);
    let mut identity = model.identity(AMAX);
    identity.layers.pop();
    let path = model.path(&identity);
    let options = BuildOptions::default();
    let error = build(&model.checkpoint, &model.spec, &identity, &path, &options, |_, _| ()).unwrap_err();
    assert!(matches!(error, CacheError::Request { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn names_are_plain_and_parse() {
    let model = Model::synthetic(11);
    let identity = model.identity(AMAX);
    for (name, start) in
        [("Qwen/Qwen3 30B", "Qwen-Qwen3-30B-int4"), ("../..", "model-int4"), ("", "model-int4"), (".x", "x-int4")]
    {
        let path = default_path(Path::new("/repository"), name, &identity);
        assert_eq!(path.parent(), Some(Path::new("/repository/cache")), "{name}");
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(start), "{name}: {path:?}");
    }
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("cache")).unwrap();
    let current = default_path(root.path(), "tiny", &identity);
    let name = current.file_name().unwrap().to_str().unwrap();
    let (stem, _) = name.rsplit_once("-l").unwrap();
    for file in [name, &format!("{stem}.experts"), &format!("{stem}-l1.experts"), &format!("{stem}-l1.experts.tmp")] {
        std::fs::write(root.path().join("cache").join(file), "").unwrap();
    }
    let stale = stale_paths(root.path(), "tiny", &identity);
    assert_eq!(stale, ["-l1.experts", ".experts"].map(|end| root.path().join("cache").join(format!("{stem}{end}"))));
    for encoding in Encoding::ALL {
        assert_eq!(encoding.name().parse::<Encoding>().unwrap(), encoding);
    }
    let error = "int3".parse::<Encoding>().unwrap_err().to_string();
    assert_eq!(error, "unknown encoding \"int3\", expected bf16, int4-amax, int4-search or int8");
}

#[test]
fn matrices_outside_experts_are_encoded_alike() {
    let values: Vec<f32> = (0..40 * 200).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    for encoding in Encoding::ALL {
        let mut out = vec![0xff; assay_kernels::layout::matrix_bytes(encoding.format(), 40, 200).unwrap()];
        let error = encode_matrix(encoding, &values, 40, 200, &mut out).unwrap();
        assert_eq!(error.weights, 8000);
        assert!(error.max < 0.01 && error.mean() <= error.max, "{encoding}: {error:?}");
        let mut streamed = vec![0; out.len()];
        let fill = |rows: std::ops::Range<usize>, tile: &mut [f32]| {
            tile.copy_from_slice(&values[rows.start * 200..rows.end * 200]);
            Ok::<_, EncodeError>(())
        };
        assert_eq!(encode_rows(encoding, 40, 200, fill, &mut streamed).unwrap(), error);
        assert!(streamed == out);

        let mut bad = values.clone();
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            bad[17 * 200 + 199] = value;
            let error = encode_matrix(encoding, &bad, 40, 200, &mut out).unwrap_err();
            assert!(matches!(error, EncodeError::NotFinite { row: 17, col: 199, .. }), "{encoding}: {error}");
        }
        assert!(encode_matrix(encoding, &values[1..], 40, 200, &mut out).is_err());
        assert!(encode_matrix(encoding, &values, 40, 200, &mut streamed[1..]).is_err());
        assert!(encode_matrix(encoding, &[], 0, 200, &mut []).is_err());
        assert!(encode_matrix(encoding, &[], usize::MAX, 3, &mut []).is_err());
    }
}
