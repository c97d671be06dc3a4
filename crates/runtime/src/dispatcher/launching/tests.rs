use std::io::Write;
use std::os::unix::process::ExitStatusExt;

use super::*;

/// Why a node is missing whose ssh has ended with this exit status, and said this.
fn why(code: i32, complaints: &str, printed: &str) -> String {
    let host = Host {
        name: "n2".to_string(),
        launcher: Launcher::Ssh,
        slots: 1,
        spare: false,
        memories: 0,
        rack: None,
    };
    let mut file = File::from(memfd_create("printed", MFdFlags::empty()).unwrap());
    file.write_all(printed.as_bytes()).unwrap();
    let guest = Guest {
        complaints: complaints.as_bytes().to_vec(),
        printed: Some(file),
        ..Guest::of(0, host)
    };
    guest.why(ExitStatus::from_raw(code << 8))
}

#[test]
fn a_shell_that_ends_by_itself_is_told_with_its_words() {
    let ended = "the shell there ended before resurgo started (exit status: 0)";
    let hint = "; see its start files (.bashrc)";
    assert_eq!(
        why(0, "", "\nclosed for today\n"),
        format!("{ended}: closed for today{hint}")
    );
    assert_eq!(why(0, "a\n", "b\nc\n"), format!("{ended}: a; b; c{hint}"));
    assert_eq!(why(0, "", ""), format!("{ended} without a word{hint}"));
    let long = why(1, "", &format!("first{}last", "x".repeat(3 * COMPLAINTS)));
    assert!(long.contains("(exit status: 1): x") && long.contains(&format!("xlast{hint}")));
    assert!(!long.contains("first") && long.len() < 2 * COMPLAINTS, "{long}");
}

#[test]
fn what_ssh_and_resurgo_say_is_theirs() {
    let refused = why(255, "Permission denied (publickey).\n", "");
    assert_eq!(refused, "ssh cannot reach it: Permission denied (publickey).");
    let missing = why(127, "sh: 1: exec: /x/resurgo: not found\n", "Welcome\n");
    assert!(
        missing.starts_with("there is no resurgo where it is here: sh: 1: "),
        "{missing}"
    );
    let own = why(1, "Welcome\nresurgo: the agent cannot reach it\n", "");
    assert_eq!(own, "Welcome; the agent cannot reach it");
    assert_eq!(why(137, "", ""), "exit status: 137");
}
