//! Programs that ranks start while the job runs (MPI_Comm_spawn). They are found like those of the command line.

use std::ffi::OsStr;
use std::path::PathBuf;

use resurgo_protocol::Protocol;
use resurgo_runtime::suspended::Origin;
use resurgo_wire::control::{Program, WantedProgram};

use crate::environment;
use crate::options::{Options, ProgramOptions};
use crate::program;

/// The program to execute for `wanted`. As at mpiexec, it gets the environment and the directory of the job, not those
/// of the rank that spawns it. Of the reserved info keys (MPI 5.0, §11.8.4) it follows `wdir` and `path`; the dispatcher
/// follows `host`. Processors are of one kind: `arch` means nothing.
pub fn find(options: &Options, origin: &Origin, wanted: &WantedProgram) -> Result<Program, String> {
    if options.protocol.only_waves() {
        // All ranks would return to a wave that some of them are not in.
        let protocol = options.protocol.name();
        return Err(format!(
            "ranks cannot spawn others under --protocol {protocol}; auto, pessimistic and none allow it"
        ));
    }
    let key = |name: &str| {
        let mut pairs = wanted.info.iter();
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    };
    let mut arguments = vec![wanted.name.clone().into()];
    arguments.extend(wanted.arguments.iter().map(Into::into));
    let program = ProgramOptions {
        ranks: wanted.ranks,
        hosts: Vec::new(),
        directory: key("wdir").map(PathBuf::from),
        inherit: None,
        environment: Vec::new(),
        arguments,
    };
    let (mut program, _) =
        program::prepare(options, &program, origin, key("path").map(OsStr::new)).map_err(|refusal| refusal.text)?;
    if program.is_plain {
        return Err(format!(
            "{} is not an MPI program, and ranks that spawn others wait for their MPI_Init",
            wanted.name
        ));
    }
    if options.protocol != Protocol::None {
        // A spawned rank connects to its parent when it starts, and gives up after three minutes. The parent may have
        // died meanwhile, and may need longer to return to the place where it answers.
        environment::set_default(&mut program.environment, "MPIR_CVAR_CH4_COMM_CONNECT_TIMEOUT", "0");
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Request, parse};

    fn found(name: &str, info: &[(&str, &str)]) -> Result<Program, String> {
        let Ok(Request::Run(options)) = parse(vec!["-genv".into(), "A".into(), "1".into(), "x".into()], &[], |_| None)
        else {
            panic!("the options are right")
        };
        let wanted = WantedProgram {
            ranks: 2,
            name: name.to_string(),
            arguments: vec!["a b".to_string(), String::new()],
            info: info
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
        };
        let origin = Origin {
            configured: Vec::new(),
            arguments: Vec::new(),
            environment: std::env::vars_os().collect(),
            directory: "/usr".into(),
        };
        find(&options, &origin, &wanted)
    }

    #[test]
    fn programs_are_found_where_their_info_says() {
        // A shell may start MPI programs, and exists on every machine.
        let program = found(
            "sh",
            &[("path", "/nowhere:/bin"), ("host", "elsewhere"), ("unknown", "")],
        );
        let Ok(program) = program else {
            // The provider is not built beside the test.
            assert!(program.unwrap_err().contains("provider"));
            return;
        };
        assert_eq!(
            (program.path.to_str(), program.directory.to_str()),
            (Some("/bin/sh"), Some("/usr/"))
        );
        assert_eq!(program.arguments, ["sh", "a b", ""]);
        assert!(program.environment.contains(&("A".into(), "1".into())));
        let program = found("./sh", &[("wdir", "/bin")]).unwrap();
        assert_eq!(
            (program.path.to_str(), program.directory.to_str()),
            (Some("/bin/sh"), Some("/bin"))
        );
    }

    #[test]
    fn what_is_not_there_is_said() {
        assert!(found("no-such-program", &[]).unwrap_err().contains("no such program"));
        assert!(
            found("sh", &[("path", "/nowhere")])
                .unwrap_err()
                .contains("no such program")
        );
        assert!(found("sh", &[("wdir", "/nowhere")]).unwrap_err().contains("/nowhere"));
        let error = found("/bin/ls", &[]).unwrap_err();
        // Perhaps the provider is not built beside the test.
        assert!(
            error.contains("not an MPI program") || error.contains("provider"),
            "{error}"
        );
    }
}
