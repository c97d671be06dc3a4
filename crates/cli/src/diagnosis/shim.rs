//! Directories of symbolic links in the user's cache, which give a library the name that a program asks for.
//!
//! They are made once and kept: their names say what they hold, so jobs share them and none removes them. Programs load
//! libraries through these links. So nobody else may write to the directories, or to one on the way to them.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use resurgo_store::own_directory::{Directory, Error, Trust};

/// The directory with these links (name, target), made if need be.
pub fn directory(cache: &Path, links: &[(&str, PathBuf)]) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    links.hash(&mut hasher);
    let name = OsString::from(format!("shim-{:016x}", hasher.finish()));
    let failed = |error: Error| {
        format!(
            "cannot use links to libraries in {}: {error}; XDG_CACHE_HOME may name another place",
            cache.display()
        )
    };
    let cannot = |error: io::Error| format!("cannot make links to libraries in {}: {error}", cache.display());
    let cache = Directory::make(cache, Trust::Nobody).map_err(failed)?;
    let right = |place: &Directory| {
        links
            .iter()
            .all(|(name, target)| place.read_link(name).ok().as_ref() == Some(target))
    };
    let there = || match cache.within(&name) {
        Ok(place) => Ok(Some(place.path().to_path_buf()).filter(|_| right(&place))),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(failed(error)),
    };
    if let Some(place) = there()? {
        return Ok(place);
    }
    // Make it aside and move it into place, so that no other job sees half of it.
    let aside = OsString::from(format!(".shim-{}", std::process::id()));
    let _ = cache.within(&aside).map(|made| made.remove_all());
    let made = cache.make_within(&aside).map_err(failed)?;
    let linked = links.iter().try_for_each(|(name, target)| made.link(target, name));
    let moved = linked.and_then(|()| cache.rename(&aside, &name));
    if let Err(error) = moved {
        let _ = made.remove_all();
        // Another job may have been faster.
        return there()?.ok_or_else(|| cannot(error));
    }
    Ok(cache.path().join(name))
}

/// The user's cache directory for these links. Without a home, as a daemon may be, it is one in the temporary
/// directory. There, anything that is not the user's is refused.
pub fn cache() -> PathBuf {
    let named = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    match (named("XDG_CACHE_HOME"), named("HOME")) {
        (Some(cache), _) => cache.join("resurgo"),
        (None, Some(home)) => home.join(".cache/resurgo"),
        (None, None) => std::env::temp_dir().join(format!("resurgo-{}", geteuid())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_once() {
        let cache = std::env::temp_dir().join(format!("resurgo-shim-{}", std::process::id()));
        let links = [
            ("libmpich.so.12", PathBuf::from("/x/libmpi.so.12")),
            ("mpich", "/x/mpich".into()),
        ];
        let first = directory(&cache, &links).unwrap();
        assert_eq!(std::fs::read_link(first.join("mpich")).unwrap(), Path::new("/x/mpich"));
        assert_eq!(directory(&cache, &links).unwrap(), first);
        assert_ne!(directory(&cache, &links[..1]).unwrap(), first);
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 2);
        std::fs::remove_dir_all(&cache).unwrap();
    }
}
