use super::*;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::json;

fn memory(parts: &[(u64, &[u8])], length: u64) -> File {
    let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(length).unwrap();
    for (offset, bytes) in parts {
        file.write_all_at(bytes, *offset).unwrap();
    }
    file
}

fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("resurgo-suspended-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

fn header() -> Header {
    let job = json!({
        "name": "t", "programs": [], "most_ranks": 1, "protocol": 1, "tolerate_node": false, "log_segments": 1,
        "prefault_segments": 0, "spin_ns": 0, "spill_directory": null,
        "event_logger_address": 0, "key": vec![0; 32], "stdin": "Nothing", "images": true,
        "checkpoint_directory": null, "checkpoint_keep": false, "open_files": [1, 1], "fixed_addresses": true,
        "place": 0, "stack_limit": 0, "legacy_layout": false,
        "message_faults": [], "image_at_messages": [],
    });
    Header {
        id: "one".into(),
        about: About {
            number: 7,
            former: Vec::new(),
            unix_time: 0.0,
            monotonic_ns: 0,
            seconds: 1.5,
            ranks: 1,
            launched: 1,
            restarts: 0,
            command: "x".into(),
            origin: Origin {
                configured: Vec::new(),
                arguments: vec!["x".into()],
                environment: Vec::new(),
                directory: "/".into(),
            },
            processor: processor(),
            wave: None,
            printed: None,
            nodes: Vec::new(),
            dispatcher: Value::Null,
        },
        job: serde_json::from_value(job).unwrap(),
        agent: json!({"a": 1}),
    }
}

fn write(directory: &Path, sections: Vec<Section>) {
    let directory = Directory::open(directory, Trust::Groups).unwrap();
    let (key, _lock) = make_key(&directory).unwrap();
    let mut writer = Writer::begin(&directory, &key, &header(), sections).unwrap();
    while writer.step().unwrap() {}
    writer.finish(&directory).unwrap();
}

#[test]
fn what_is_written_is_read() {
    let directory = directory("whole");
    let far = 1u64 << 40;
    let long: Vec<u8> = (0..9_000_000u32).map(|i| (i / 50_000 % 3) as u8).collect();
    let first = memory(&[(0, b"begin"), (123_456, &long), (far - 3, b"end")], far);
    let unneeded = vec![4096..8192, 130_000..200_000];
    first.write_all_at(b"not needed", 5000).unwrap();
    let sections = vec![
        Section {
            file: Some(first),
            length: None,
            unneeded,
        },
        Section::default(),
        Section {
            file: Some(memory(&[(0, b"input and what came later")], 25)),
            length: Some(5),
            unneeded: Vec::new(),
        },
    ];
    write(&directory, sections);
    // Zeros and unneeded parts are not in it.
    assert!(fs::metadata(directory.join(FILE)).unwrap().len() < 7_000_000);
    assert_eq!(Suspended::find(&directory).unwrap().header.about, header().about);

    let mut reader = Reader::open(&directory, "one").unwrap();
    let again = memory(&[], far);
    assert_eq!(reader.section(Some(&again)).unwrap(), far);
    assert_eq!(reader.section(None).unwrap(), 0);
    let input = memory(&[], 0);
    assert_eq!(reader.section(Some(&input)).unwrap(), 5);
    assert!(Suspended::find(&directory).unwrap().is_running);
    drop(reader.finish().unwrap());
    let mut expected = long;
    expected[130_000 - 123_456..200_000 - 123_456].fill(0);
    for (offset, bytes) in [
        (0, &b"begin"[..]),
        (123_456, &expected),
        (5000, &[0; 10]),
        (far - 3, b"end"),
    ] {
        let mut read = vec![0; bytes.len()];
        again.read_exact_at(&mut read, offset).unwrap();
        assert!(read == bytes, "at {offset}");
    }
    assert!(matches!(Reader::open(&directory, "two"), Err(Error::InUse(_))));
    // With another key the file is not valid.
    fs::remove_file(directory.join(KEY)).unwrap();
    assert!(matches!(Suspended::find(&directory), Err(Error::Defect(..))));
    make_key(&Directory::open(&directory, Trust::Groups).unwrap()).unwrap();
    assert!(matches!(Suspended::find(&directory), Err(Error::Defect(..))));
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_the_version_before_has_written_is_read() {
    let directory = directory("before");
    write(&directory, vec![Section::default()]);
    let path = directory.join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    let key = Key::try_from(fs::read(directory.join(KEY)).unwrap()).unwrap();
    for (format, is_good) in [(OLDEST_FORMAT - 1, false), (OLDEST_FORMAT, true), (FORMAT + 1, false)] {
        bytes[8..12].copy_from_slice(&format.to_le_bytes());
        let end = bytes.len() - 32;
        let sum = blake3::keyed_hash(&key, &bytes[..end]);
        bytes[end..].copy_from_slice(sum.as_bytes());
        fs::write(&path, &bytes).unwrap();
        assert_eq!(Suspended::find(&directory).is_ok(), is_good, "{format}");
        if is_good {
            let mut reader = Reader::open(&directory, "one").unwrap();
            reader.section(None).unwrap();
            assert_eq!(reader.finish().unwrap().1, key);
        }
    }
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn another_processor_is_noticed() {
    let mut about = header().about;
    assert!(about.missing(&processor()).is_empty());
    about.processor = ["fpu", "avx2", "avx512f", "xsaves", "ibpb"].map(String::from).to_vec();
    let other = ["fpu", "avx2", "xsaves"].map(String::from);
    assert_eq!(about.missing(&other), ["avx512f"]);
}

#[test]
fn every_damaged_byte_is_noticed() {
    let directory = directory("damaged");
    write(
        &directory,
        vec![Section {
            file: Some(memory(&[(10, b"some bytes")], 4096)),
            length: None,
            unneeded: Vec::new(),
        }],
    );
    let path = directory.join(FILE);
    let whole = fs::read(&path).unwrap();
    let read = || {
        let mut reader = Reader::open(&directory, "one")?;
        reader.section(None)?;
        reader.finish()
    };
    assert!(read().is_ok());
    for at in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert!(read().is_err(), "byte {at}");
    }
    // Cut off anywhere, and zeros from there on: a power cut, and a disk that lost data it had confirmed.
    for length in (0..whole.len()).step_by(11).chain([whole.len() - 33, whole.len() - 1]) {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(matches!(read(), Err(Error::Defect(_, Defect::Short))), "{length} bytes");
        let mut lost = whole.clone();
        lost[length..].fill(0);
        fs::write(&path, &lost).unwrap();
        assert_eq!(read().is_ok(), lost == whole, "zeros from {length}");
    }
    fs::remove_dir_all(directory).unwrap();
}
