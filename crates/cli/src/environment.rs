//! The environment of ranks: what the user has, minus what other launchers left, plus what leads MPI to the provider.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::options::{Inherit, Options, ProgramOptions};

/// Variables, in the order in which ranks get them. Names are unique.
pub type Variables = Vec<(OsString, OsString)>;

/// Sets `name`, replacing an earlier value.
pub fn set(variables: &mut Variables, name: impl Into<OsString>, value: impl Into<OsString>) {
    let (name, value) = (name.into(), value.into());
    match variables.iter_mut().find(|(known, _)| *known == name) {
        Some(known) => known.1 = value,
        None => variables.push((name, value)),
    }
}

/// Sets `name` unless the user has set it.
pub fn set_default(variables: &mut Variables, name: &str, value: impl Into<OsString>) {
    if !variables.iter().any(|(known, _)| known == name) {
        variables.push((name.into(), value.into()));
    }
}

/// Settings with which MPICH crashes in one-sided communication: it needs active messages, as there are no native windows
/// here (`fabric/src/ofi/mr.rs`), and long ones by remote reads, as it overwrites headers of those in segments.
const CRASHES: [(&str, &[&str]); 3] = [
    ("MPIR_CVAR_CH4_OFI_ENABLE_AM", OFF),
    ("MPIR_CVAR_CH4_OFI_ENABLE_RMA", OFF),
    ("MPIR_CVAR_CH4_OFI_AM_LONG_FORCE_PIPELINE", ON),
];
const OFF: &[&str] = &["0", "no", "false", "off"];
const ON: &[&str] = &["1", "yes", "true", "on"];

/// Leaves these out. Returns what the user should know.
pub fn leave_out_what_crashes(variables: &mut Variables) -> Option<String> {
    let crashes = |(name, value): &(OsString, OsString)| {
        let is_it = |(known, values): &(&str, &[&str])| {
            name == known && values.iter().any(|word| value.eq_ignore_ascii_case(word))
        };
        CRASHES.iter().any(is_it)
    };
    let (left_out, kept): (Variables, Variables) = std::mem::take(variables).into_iter().partition(crashes);
    *variables = kept;
    let words = left_out
        .iter()
        .map(|(name, value)| format!("{}={}", name.display(), value.display()));
    let words: Vec<String> = words.collect();
    let told = || {
        format!(
            "{}: left out, as MPICH crashes with it in one-sided communication",
            words.join(", ")
        )
    };
    (!words.is_empty()).then(told)
}

/// Puts directories in front of a search path.
pub fn prepend_path(variables: &mut Variables, name: &str, directories: &[OsString]) {
    let before = variables
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.clone());
    let mut value = OsString::new();
    let old = before.iter().map(OsString::as_os_str).filter(|old| !old.is_empty());
    for directory in directories.iter().map(OsString::as_os_str).chain(old) {
        if !value.is_empty() {
            value.push(":");
        }
        value.push(directory);
    }
    set(variables, name, value);
}

/// The part of the user's environment and options that a program's ranks get.
pub fn of_user(inherited: Variables, options: &Options, program: &ProgramOptions) -> Variables {
    let inherit = program.inherit.as_ref().unwrap_or(&options.environment.inherit);
    let mut variables: Variables = Vec::new();
    for (name, value) in inherited {
        let passed = match inherit {
            Inherit::All => true,
            Inherit::Nothing => false,
            Inherit::Listed(names) => names.iter().any(|listed| name == listed.as_str()),
        };
        let passed = passed
            || options
                .environment
                .exported
                .iter()
                .any(|exported| name == exported.as_str());
        if passed && !is_leftover(&name) {
            set(&mut variables, name, value);
        }
    }
    for (name, value) in options.environment.set.iter().chain(&program.environment) {
        set(&mut variables, name, value);
    }
    variables
}

/// Variables of another launcher, which would make MPI talk to that one.
fn is_leftover(name: &OsStr) -> bool {
    let name = name.as_bytes();
    [
        "PMI_",
        "PMIX_",
        "PMI2_",
        "HYDRA_",
        "HYDI_",
        "MPI_LOCAL",
        "I_MPI_HYDRA",
        "OMPI_COMM_WORLD",
        "PRTE_",
        "PALS_",
        // Set in a rank that runs this launcher.
        "RESURGO_RANK",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix.as_bytes()))
        || name == b"I_MPI_PMI_LIBRARY"
        || name == b"I_MPI_PMI"
        || (name.starts_with(b"SLURM_") && name.windows(3).any(|part| part == b"PMI"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Request, parse};

    fn of(line: &str) -> Variables {
        let arguments = line.split_whitespace().map(OsString::from).collect();
        let Ok(Request::Run(options)) = parse(arguments, &[], |_| None) else {
            panic!("{line}")
        };
        let inherited = [
            ("A", "1"),
            ("PMIX_RANK", "0"),
            ("SLURM_PMIX_PORT", "9"),
            ("SLURM_JOB_ID", "7"),
            ("B", "2"),
        ];
        let inherited = inherited.map(|(name, value)| (name.into(), value.into())).to_vec();
        of_user(inherited, &options, &options.programs[0])
    }

    fn shown(variables: &Variables) -> Vec<String> {
        variables
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect()
    }

    #[test]
    fn the_users_environment_is_passed_on_without_leftovers() {
        assert_eq!(shown(&of("x")), ["A=1", "SLURM_JOB_ID=7", "B=2"]);
        assert_eq!(shown(&of("-envnone -env C 3 x")), ["C=3"]);
        assert_eq!(shown(&of("-genvnone -envlist B x")), ["B=2"]);
        assert_eq!(shown(&of("-genv A 5 -env B 6 x")), ["A=5", "SLURM_JOB_ID=7", "B=6"]);
    }

    #[test]
    fn settings_with_which_mpich_crashes_are_left_out() {
        let mut variables = of("-envnone -env MPIR_CVAR_CH4_OFI_ENABLE_AM no -env C 3 x");
        let note = leave_out_what_crashes(&mut variables).unwrap();
        assert!(note.starts_with("MPIR_CVAR_CH4_OFI_ENABLE_AM=no: left out"), "{note}");
        assert_eq!(shown(&variables), ["C=3"]);
        assert_eq!(leave_out_what_crashes(&mut variables), None);
        let mut others =
            of("-envnone -env MPIR_CVAR_CH4_OFI_ENABLE_AM 1 -env MPIR_CVAR_CH4_OFI_AM_LONG_FORCE_PIPELINE 0 x");
        assert_eq!(leave_out_what_crashes(&mut others), None);
        assert_eq!(others.len(), 2);
    }

    #[test]
    fn paths_are_put_in_front() {
        let mut variables = of("-envnone x");
        prepend_path(&mut variables, "P", &["/a".into(), "/b".into()]);
        prepend_path(&mut variables, "P", &["/c".into()]);
        assert_eq!(shown(&variables), ["P=/c:/a:/b"]);
    }
}
