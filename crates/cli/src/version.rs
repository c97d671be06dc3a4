//! `resurgo --version`: this build, and what it finds on this machine.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use resurgo_protocol::Protocol;
use serde_json::json;

use crate::diagnosis::{self, Installed};
use crate::program;
use crate::say;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What there is to tell.
struct About {
    /// The build ID of the binary, in hexadecimal digits.
    build: Option<String>,
    provider: Option<PathBuf>,
    libraries: Vec<Installed>,
}

/// Prints it; returns the exit status.
pub fn run(arguments: &[OsString]) -> i32 {
    let as_json = match arguments {
        [] => false,
        [option] if option == "--json" => true,
        [argument, ..] => {
            return say::usage(&format!(
                "version takes no arguments but --json, not {:?}",
                argument.display()
            ));
        }
    };
    let about = find();
    let text = if as_json { as_object(&about) } else { as_text(&about) };
    say::print(&text);
    0
}

fn find() -> About {
    let build = std::env::current_exe().ok().and_then(|exe| diagnosis::build_id(&exe));
    let provider = program::provider_path().ok();
    About {
        build: build.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()),
        provider: provider.map(|directory| Path::new(&directory).join(program::PROVIDER)),
        libraries: diagnosis::installed(&std::env::vars_os().collect()),
    }
}

fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// Scripts read the first line: it is the name and the version alone.
fn as_text(about: &About) -> String {
    let mut text = format!("resurgo {VERSION}\n");
    let build = about.build.as_deref().unwrap_or("without a build ID");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "build        {build} ({}, {})", profile(), std::env::consts::ARCH);
    let _ = writeln!(text, "protocols    {}", Protocol::NAMES.join(", "));
    let _ = match &about.provider {
        Some(provider) => writeln!(text, "provider     {}", provider.display()),
        None => writeln!(text, "provider     missing: install Resurgo again"),
    };
    for library in &about.libraries {
        let (file, whose) = (library.file.display(), library.whose);
        let _ = match library.is_usable {
            true => writeln!(text, "MPI library  {file} ({whose})"),
            false => writeln!(text, "MPI library  {file} ({whose}, which cannot be served)"),
        };
    }
    if !about.libraries.iter().any(|library| library.is_usable) {
        let _ = writeln!(
            text,
            "MPI library  none is found that can be served; {}",
            diagnosis::INSTALL
        );
    }
    text
}

fn as_object(about: &About) -> String {
    let libraries = about.libraries.iter().map(|library| {
        json!({
            "library": library.file.to_string_lossy(),
            "maker": library.whose,
            "usable": library.is_usable,
        })
    });
    let object = json!({
        "version": VERSION,
        "build": about.build,
        "profile": profile(),
        "architecture": std::env::consts::ARCH,
        "protocols": Protocol::NAMES,
        "provider": about.provider.as_ref().map(|provider| provider.to_string_lossy()),
        "libraries": libraries.collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_for_scripts() {
        let library = Installed {
            file: "/lib/libmpi.so.40".into(),
            whose: "Open MPI",
            is_usable: false,
        };
        let about = About {
            build: None,
            provider: None,
            libraries: vec![library],
        };
        let text = as_text(&about);
        assert_eq!(text.lines().next(), Some(format!("resurgo {VERSION}").as_str()));
        assert!(text.contains("MPI library  /lib/libmpi.so.40 (Open MPI, which cannot be served)\nMPI library  none"));
        let object: serde_json::Value = serde_json::from_str(&as_object(&about)).unwrap();
        assert_eq!(object["version"], VERSION);
        assert_eq!(
            (object["libraries"][0]["usable"].as_bool(), object["build"].as_str()),
            (Some(false), None)
        );
    }

    #[test]
    fn a_program_has_its_build_id() {
        let about = find();
        assert!(about.build.is_none_or(|build| build.len() >= 16));
    }
}
