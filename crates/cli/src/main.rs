//! The `resurgo` command.

mod addresses;
mod bench;
mod check;
mod clock;
mod diagnosis;
mod doctor;
mod environment;
mod help;
mod hosts;
mod image;
mod jobs;
mod join;
mod near;
mod options;
mod program;
mod run;
mod slurm;
mod spawn;
mod suspend;
mod text_file;

use std::ffi::OsString;
use std::process::ExitCode;

use resurgo_wire::control::{AGENT, INVITED, KEPT};

fn main() -> ExitCode {
    resurgo_image::hear_of_children();
    let mut arguments = std::env::args_os().skip(1);
    let verb = arguments.next().unwrap_or_default();
    let rest: Vec<OsString> = arguments.collect();
    match verb.to_str() {
        // The others find out themselves where their own options end.
        Some(
            verb @ ("ps" | "checkpoint" | "suspend" | "kill" | "rm" | "image" | "join" | "add-host" | "remove-host"
            | "drain"),
        ) if rest.iter().any(|word| word == "--help" || word == "-h") => code(help::print(verb)),
        Some("run") => code(run::run(rest)),
        Some("doctor") => code(doctor::run(rest)),
        Some("bench") => code(bench::run(rest)),
        Some("join") => code(join::run(rest)),
        Some("add-host") => code(jobs::add_host(rest)),
        Some("remove-host") => code(jobs::drain("remove-host", rest)),
        Some("drain") => code(jobs::drain("drain", rest)),
        Some("ps") => code(jobs::ps(rest)),
        Some("checkpoint") => code(jobs::checkpoint(rest)),
        Some("suspend") => code(jobs::suspend(rest)),
        Some("resume") => code(suspend::resume(rest)),
        Some("kill") => code(jobs::kill(rest)),
        Some("rm") => code(jobs::rm(rest)),
        Some(AGENT) if rest == [KEPT] => code(resurgo_runtime::agent::kept::run()),
        Some(AGENT) => code(resurgo_runtime::agent::run(rest == [INVITED])),
        Some(resurgo_runtime::event_logger::VERB) => code(resurgo_runtime::event_logger::run()),
        Some(resurgo_runtime::channel_memory::VERB) => code(resurgo_runtime::channel_memory::run()),
        Some(resurgo_runtime::trampoline::VERB) => code(resurgo_runtime::trampoline::rank_exec(rest)),
        Some(resurgo_runtime::trampoline::RESTORE_VERB) => code(resurgo_runtime::trampoline::rank_restore(rest)),
        Some("image") => code(image::run(rest)),
        Some("-h" | "--help" | "help") => {
            let about = rest.first().map(|word| word.to_string_lossy());
            code(help::print(about.as_deref().unwrap_or_default()))
        }
        Some("-V" | "--version" | "version") => {
            println!("resurgo {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some("") => {
            eprint!("{}", help::all());
            ExitCode::from(check::USAGE)
        }
        _ => {
            let known = [
                "run",
                "doctor",
                "bench",
                "image",
                "ps",
                "checkpoint",
                "suspend",
                "resume",
                "kill",
                "rm",
                "join",
                "add-host",
                "remove-host",
                "drain",
                "help",
                "version",
            ];
            let near = near::nearest(&verb.to_string_lossy(), &known).unwrap_or("--help");
            eprintln!(
                "resurgo: there is no {:?}; did you mean \"resurgo {near}\"?",
                verb.display()
            );
            ExitCode::from(check::USAGE)
        }
    }
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
