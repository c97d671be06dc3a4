//! The key of a store, and the outer form of all its objects.
//!
//! ```text
//! magic 4   form 1   key's number 8   check of these and the next 8   digest 32   body
//! ```
//!
//! - Without a key the digest is the BLAKE3 of the body.
//! - With a key (form 1) the body is sealed with AES-256-GCM. The digest is a BLAKE3 of the object's name and the plain
//!   body, keyed. From it and the key comes the key of this one object. So the same key seals the same bytes only, and
//!   a nonce, which is always 0, never repeats under a key with other bytes. Equal objects are equal when they are
//!   sealed, too: what is there is not sent again.
//! - The key's number tells another key from damage.

use std::io::{self, Read};
use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::error::Kind;
use crate::name::Hash;
use crate::private;

const MAGIC: [u8; 4] = *b"RSO1";
const PLAIN: u8 = 0;
const SEALED: u8 = 1;
const HEADER: usize = 4 + 1 + 8 + 8 + 32;
/// Bytes in a file with a key, at least and at most.
const SHORTEST: usize = 32;
const LONGEST: u64 = 4096;

/// What `--store-key` names.
#[derive(Clone)]
pub struct StoreKey {
    number: [u8; 8],
    names: [u8; 32],
    digests: [u8; 32],
    seals: [u8; 32],
}

impl std::fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreKey(…)")
    }
}

impl StoreKey {
    /// From secret bytes that cannot be guessed.
    pub fn of(secret: &[u8]) -> StoreKey {
        let derived = |purpose: &str| blake3::derive_key(purpose, secret);
        let mut number = [0; 8];
        number.copy_from_slice(&derived("resurgo 2026-11-27 store: number of the key")[..8]);
        StoreKey {
            number,
            names: derived("resurgo 2026-11-27 store: names of chunks"),
            digests: derived("resurgo 2026-11-27 store: digests of objects"),
            seals: derived("resurgo 2026-11-27 store: keys of objects"),
        }
    }

    /// From a file of the user, as `openssl rand -hex 32` makes one.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or it is too short for a key.
    pub fn read(path: &Path) -> io::Result<StoreKey> {
        StoreKey::secret(path).map(|secret| StoreKey::of(&secret))
    }

    /// The secret bytes in such a file.
    ///
    /// # Errors
    /// As [`read`](StoreKey::read).
    pub fn secret(path: &Path) -> io::Result<Vec<u8>> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = private::open(path, "this key")?;
        let mut secret = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut secret).map_err(named)?;
        let secret = secret.trim_ascii();
        if secret.len() < SHORTEST || secret.len() as u64 > LONGEST {
            return Err(wrong(
                "a key has 32 to 4096 bytes; this makes one: openssl rand -hex 32",
            ));
        }
        Ok(secret.to_vec())
    }

    fn digest(&self, name: &str, body: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.digests);
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(body);
        hasher.finalize().into()
    }

    fn key_of(&self, digest: &Hash) -> Result<LessSafeKey, Kind> {
        let key = blake3::keyed_hash(&self.seals, digest);
        let unusable = |_| Kind::Io(io::Error::other("the cipher refuses the key"));
        UnboundKey::new(&AES_256_GCM, key.as_bytes())
            .map(LessSafeKey::new)
            .map_err(unusable)
    }
}

/// The hash of a chunk, which is its name.
pub fn hash(key: Option<&StoreKey>, bytes: &[u8]) -> Hash {
    match key {
        None => blake3::hash(bytes).into(),
        Some(key) => blake3::keyed_hash(&key.names, bytes).into(),
    }
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn header(form: u8, number: [u8; 8], digest: &Hash) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.push(form);
    bytes.extend_from_slice(&number);
    let check = check(&bytes, digest);
    bytes.extend_from_slice(&check);
    bytes.extend_from_slice(digest);
    bytes
}

fn check(start: &[u8], digest: &Hash) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(start).update(digest);
    let mut check = [0; 8];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    check
}

/// The bytes of the object `name` with this body.
///
/// # Errors
/// The cipher does not work.
pub fn wrap(key: Option<&StoreKey>, name: &str, mut body: Vec<u8>) -> Result<Vec<u8>, Kind> {
    let Some(key) = key else {
        let mut object = header(PLAIN, [0; 8], blake3::hash(&body).as_bytes());
        object.append(&mut body);
        return Ok(object);
    };
    let digest = key.digest(name, &body);
    let mut object = header(SEALED, key.number, &digest);
    let sealing = key.key_of(&digest)?;
    let sealed = sealing.seal_in_place_append_tag(nonce(), Aad::from(name.as_bytes()), &mut body);
    sealed.map_err(|_| Kind::Io(io::Error::other("the cipher refuses the object")))?;
    object.append(&mut body);
    Ok(object)
}

/// The body of the object `name`.
///
/// # Errors
/// It is damaged, sealed with another key, or not sealed as it should be.
pub fn unwrap(key: Option<&StoreKey>, name: &str, mut object: Vec<u8>) -> Result<Vec<u8>, Kind> {
    let damaged = |why: &str| Kind::Damaged(why.to_string());
    let Some(header) = object.first_chunk::<HEADER>().copied() else {
        return Err(damaged("its end is missing"));
    };
    let mut digest = [0; 32];
    digest.copy_from_slice(&header[21..]);
    if header[..4] != MAGIC || check(&header[..13], &digest) != header[13..21] {
        return Err(damaged("its beginning is not as it was written"));
    }
    let mut body = object.split_off(HEADER);
    match (header[4], key) {
        (PLAIN, None) => match *blake3::hash(&body).as_bytes() == digest {
            true => Ok(body),
            false => Err(damaged("its bytes are not as they were written")),
        },
        (SEALED, Some(key)) if header[5..13] == key.number => {
            let opened = key
                .key_of(&digest)?
                .open_in_place(nonce(), Aad::from(name.as_bytes()), &mut body)
                .map(|plain| plain.len());
            let length = opened.map_err(|_| damaged("its bytes are not as they were sealed"))?;
            body.truncate(length);
            Ok(body)
        }
        (SEALED, Some(_)) => Err(Kind::OtherKey),
        (SEALED, None) => Err(Kind::KeyNeeded),
        (PLAIN, Some(_)) => Err(Kind::NotSealed),
        (form, _) => Err(Kind::Damaged(format!("it has form {form}, of another version"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_wrapped_comes_back_and_nothing_else() {
        let key = StoreKey::of(&[7; 32]);
        for key in [None, Some(&key)] {
            let object = wrap(key, "j/chunks/x", b"some bytes".to_vec()).unwrap();
            assert_eq!(unwrap(key, "j/chunks/x", object.clone()).unwrap(), b"some bytes");
            for at in 0..object.len() {
                let mut other = object.clone();
                other[at] ^= 1;
                assert!(
                    matches!(unwrap(key, "j/chunks/x", other), Err(Kind::Damaged(_))),
                    "{at}"
                );
                assert!(matches!(
                    unwrap(key, "j/chunks/x", object[..at].to_vec()),
                    Err(Kind::Damaged(_))
                ));
            }
        }
    }

    #[test]
    fn another_key_is_not_taken_for_damage() {
        let (one, other) = (StoreKey::of(&[7; 32]), StoreKey::of(&[8; 32]));
        let sealed = wrap(Some(&one), "n", b"x".to_vec()).unwrap();
        let plain = wrap(None, "n", b"x".to_vec()).unwrap();
        assert!(matches!(unwrap(Some(&other), "n", sealed.clone()), Err(Kind::OtherKey)));
        assert!(matches!(unwrap(None, "n", sealed.clone()), Err(Kind::KeyNeeded)));
        assert!(matches!(unwrap(Some(&one), "n", plain), Err(Kind::NotSealed)));
        // An object in the place of another.
        assert!(matches!(unwrap(Some(&one), "m", sealed), Err(Kind::Damaged(_))));
    }

    #[test]
    fn sealed_bytes_show_nothing_and_are_the_same_each_time() {
        let key = StoreKey::of(&[7; 32]);
        let body = b"attack at dawn, attack at dawn".to_vec();
        let sealed = wrap(Some(&key), "n", body.clone()).unwrap();
        assert_eq!(sealed, wrap(Some(&key), "n", body.clone()).unwrap());
        assert!(!sealed.windows(6).any(|window| window == b"attack"));
        assert_ne!(sealed[HEADER..], wrap(Some(&key), "m", body.clone()).unwrap()[HEADER..]);
        assert_ne!(hash(Some(&key), &body), hash(None, &body));
    }

    #[test]
    fn a_key_is_a_file_that_only_its_owner_reads() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("resurgo-store-key-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let allow = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        allow(0o644);
        let error = StoreKey::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod go="), "{error}");
        allow(0o600);
        assert_eq!(
            StoreKey::read(&path).unwrap().number,
            StoreKey::of(b"0123456789abcdef0123456789abcdef").number
        );
        std::fs::write(&path, "short").unwrap();
        assert!(StoreKey::read(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(StoreKey::read(&path).is_err());
    }
}
