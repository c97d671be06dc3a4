//! Directories of symbolic links in the user's cache, which give a library the name that a program asks for.
//!
//! They are made once and kept: their names say what they hold, so jobs share them and none removes them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The directory with these links (name, target), made if need be.
pub fn directory(cache: &Path, links: &[(&str, PathBuf)]) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    links.hash(&mut hasher);
    let place = cache.join(format!("shim-{:016x}", hasher.finish()));
    let right = |place: &Path| {
        links
            .iter()
            .all(|(name, target)| std::fs::read_link(place.join(name)).ok().as_ref() == Some(target))
    };
    if right(&place) {
        return Ok(place);
    }
    let failed = |error: io::Error| format!("cannot make links in {}: {error}", cache.display());
    std::fs::create_dir_all(cache).map_err(failed)?;
    // Made aside and moved into place, so that no other job sees half of it.
    let aside = cache.join(format!(".shim-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&aside);
    std::fs::create_dir(&aside).map_err(failed)?;
    let made = links
        .iter()
        .try_for_each(|(name, target)| symlink(target, aside.join(name)));
    let moved = made.and_then(|()| std::fs::rename(&aside, &place));
    if let Err(error) = moved {
        let _ = std::fs::remove_dir_all(&aside);
        // Another job may have been faster.
        if !right(&place) {
            return Err(failed(error));
        }
    }
    Ok(place)
}

/// The user's cache directory for these.
pub fn cache() -> PathBuf {
    let named = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    match (named("XDG_CACHE_HOME"), named("HOME")) {
        (Some(cache), _) => cache.join("resurgo"),
        (None, Some(home)) => home.join(".cache/resurgo"),
        (None, None) => std::env::temp_dir().join("resurgo-cache"),
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
