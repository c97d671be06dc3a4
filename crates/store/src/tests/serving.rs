//! Checkpoint servers and their clients.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use super::{Random, Scratch, check_all, files, put, seed};
use crate::{Generation, Kind, Place, Sender, Server, Servers, Settings, Store, server_key};

const HOUR: Duration = Duration::from_secs(3600);
/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves until the test's process ends; returns the address.
fn serve(settings: Settings) -> String {
    serve_with(&Arc::new(Server::new(&settings).unwrap()), |_| {})
}

fn serve_with(server: &Arc<Server>, tell: impl Fn(&str) + Send + Sync + 'static) -> String {
    let (server, listener) = (server.clone(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || server.serve(&listener, &tell));
    address
}

/// Of the file's first user.
fn key_in(file: &std::path::Path) -> [u8; 32] {
    server_key::read(file).unwrap()[0].key
}

fn settings(scratch: &Scratch, name: &str) -> Settings {
    Settings {
        directory: scratch.below(name),
        ..Settings::default()
    }
}

#[test]
fn several_servers_are_one_place() {
    let mut random = Random(seed());
    let scratch = Scratch::new();
    let files = files(&scratch, &mut random);
    // So many chunks that each server has some, whatever its port.
    for number in 0..60 {
        let name = format!("small-{number}");
        fs::write(files[0].join(&name), random.bytes(100)).unwrap();
    }
    let keys = scratch.0.join("keys");
    server_key::make(&keys, "ada").unwrap();
    let addresses: Vec<String> = ["one", "two", "three"]
        .map(|name| {
            serve(Settings {
                key_file: Some(keys.clone()),
                ..settings(&scratch, &format!("place-{name}"))
            })
        })
        .into();
    let place = Servers::open("server:…", &addresses, key_in(&keys));
    let store = Store::new(Arc::new(place), None);
    let mut sender = Sender::new(store.clone(), "job", 0, None);
    for number in 0..4 {
        put(&store, &mut sender, number, &files[number as usize % 2]).unwrap();
    }
    let expected = |generation: Generation| files[generation.number as usize % 2].clone();
    assert_eq!(check_all(&store, &scratch, expected), 4);
    for name in ["one", "two", "three"] {
        let chunks = scratch.0.join(format!("place-{name}/users/ada/job/chunks"));
        assert!(fs::read_dir(chunks).unwrap().count() > 0, "{name}");
    }
    assert!(store.gc("job", Some(2), crate::GRACE).unwrap().generations == 2);
    assert_eq!(check_all(&store, &scratch, expected), 2);
    assert_eq!(store.jobs().unwrap(), ["job"]);
    store.remove("job").unwrap();
    assert!(store.jobs().unwrap().is_empty());
}

#[test]
fn only_users_are_served_and_see_their_own() {
    let scratch = Scratch::new();
    let (all, ada, eve) = (scratch.0.join("all"), scratch.0.join("ada"), scratch.0.join("eve"));
    server_key::make(&ada, "ada").unwrap();
    server_key::make(&eve, "eve").unwrap();
    let bob = scratch.0.join("bob");
    server_key::make(&bob, "bob").unwrap();
    let lines = [fs::read(&ada).unwrap(), fs::read(&bob).unwrap()].concat();
    fs::write(&all, lines).unwrap();
    fs::set_permissions(&all, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let address = serve(Settings {
        key_file: Some(all),
        quota: Some(1000),
        ..settings(&scratch, "place")
    });
    let open = |key| Servers::open("server:x", std::slice::from_ref(&address), key_in(key));
    let (of_ada, of_bob) = (open(&ada), open(&bob));
    of_ada.put("job/chunks/x", b"of ada").unwrap();
    assert!(of_bob.get("job/chunks/x").unwrap_err().is_missing() && of_bob.list("").unwrap().is_empty());
    let refused = open(&eve).put("job/chunks/x", b"of eve").unwrap_err();
    assert!(matches!(refused.kind, Kind::NoRights(_)), "{refused}");
    // Replaced and removed bytes are free again.
    for _ in 0..5 {
        of_ada.put("job/chunks/x", &[1; 900]).unwrap();
    }
    let full = of_ada.put("job/chunks/y", &[1; 200]).unwrap_err();
    assert!(
        matches!(full.kind, Kind::Quota(_)) && full.to_string().contains("ada may have 1000"),
        "{full}"
    );
    assert!(!of_ada.has("job/chunks/y").unwrap());
    of_bob.put("job/chunks/y", &[1; 900]).unwrap();
    of_ada.delete("job/chunks/x").unwrap();
    of_ada.put("job/chunks/y", &[1; 200]).unwrap();
    let wrong = of_ada.put("job/chunks/../x", b"x").unwrap_err();
    assert!(matches!(wrong.kind, Kind::BadName(_)), "{wrong}");
    // Strangers, silent ones and others, do not keep users out.
    let mut strangers: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for stranger in &mut strangers {
        let _ = stranger.write_all(b"GET / HTTP/1.1\r\n\r\n");
    }
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    open(&bob).put("job/chunks/z", b"z").unwrap();
    drop(silent);
    assert_eq!(strangers[0].read(&mut [0; 100]).unwrap_or(0), 0);
}

#[test]
fn a_server_goes_on_where_another_was_killed() {
    let scratch = Scratch::new();
    let settings = settings(&scratch, "place");
    let server = Server::new(&settings).unwrap();
    let error = Server::new(&settings).err().unwrap();
    assert!(error.contains("another checkpoint server"), "{error}");
    drop(server);
    let users = scratch.below("place/users/resurgo");
    let chunks = users.join("job/chunks");
    for job in ["job", "old"] {
        let chunks = scratch.below(&format!("place/users/resurgo/{job}/chunks"));
        for directory in chunks.ancestors().take(4) {
            fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        }
        fs::write(chunks.join("x"), [1; 100]).unwrap();
    }
    // As if a job had been written three hours ago.
    let age = |job: &str| {
        let then = fs::FileTimes::new().set_modified(SystemTime::now() - 3 * HOUR);
        for folder in fs::read_dir(users.join(job)).unwrap() {
            let folder = fs::File::open(folder.unwrap().path()).unwrap();
            folder.set_times(then).unwrap();
        }
    };
    fs::write(chunks.join(".tmp-1"), [1; 100]).unwrap();
    let keys = settings.directory.join("keys");
    let server = Server::new(&Settings {
        quota: Some(150),
        expire: Some(HOUR),
        ..settings
    });
    let server = Arc::new(server.unwrap());
    assert!(!chunks.join(".tmp-1").exists());
    age("old");
    let (tells, told) = mpsc::channel();
    let address = serve_with(&server, move |text| _ = tells.send(text.to_string()));
    let place = Servers::open("server:x", &[address], key_in(&keys));
    // The old job goes as soon as the server has looked.
    let removed = told.recv_timeout(PATIENCE).unwrap();
    assert!(removed.contains("job old of resurgo"), "{removed}");
    assert_eq!(place.list("").unwrap().len(), 1);
    assert!(matches!(
        place.put("job/chunks/y", &[0; 60]).unwrap_err().kind,
        Kind::Quota(_)
    ));
    // A job that is read stays, although nobody writes to it; then it goes.
    age("job");
    assert_eq!(place.get("job/chunks/x").unwrap().len(), 100);
    server.expire(HOUR, &|_| {});
    assert_eq!(place.get("job/chunks/x").unwrap().len(), 100);
    server.expire(Duration::ZERO, &|_| {});
    assert!(place.list("").unwrap().is_empty());
    place.put("job/chunks/y", &[0; 150]).unwrap();
}

#[test]
fn a_changed_message_ends_the_connection() {
    let scratch = Scratch::new();
    let settings = settings(&scratch, "place");
    let keys = settings.directory.join("keys");
    let address = serve(settings);
    // One byte of the content changes on the way, once.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let other = TcpStream::connect(&address).unwrap();
            let (mut one, mut two) = (stream.try_clone().unwrap(), other.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut two, &mut one);
                let _ = one.shutdown(std::net::Shutdown::Both);
            });
            let (mut one, mut two) = (stream, other);
            std::thread::spawn(move || {
                let mut bytes = [0; 65536];
                while let Ok(came @ 1..) = one.read(&mut bytes) {
                    // The handshake may have such a byte too, by chance.
                    if let Some(at) = bytes[..came].windows(16).position(|some| some == [b'!'; 16])
                        && number == 0
                    {
                        bytes[at] = b'?';
                    }
                    if two.write_all(&bytes[..came]).is_err() {
                        return;
                    }
                }
                let _ = two.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    let place = Servers::open("server:x", &[between], key_in(&keys));
    place.put("job/chunks/x", &[b'!'; 100_000]).unwrap();
    assert!(place.get("job/chunks/x").unwrap() == [b'!'; 100_000]);
}
