//! Lives and images of ranks, as the ledger has them.

use resurgo_wire::control::Stream::{Stderr, Stdout};

use resurgo_pmi::Position;
use resurgo_protocol::Protocol;
use serde_json::json;

use super::taken::Printed;
use super::*;
use crate::note::{Counts, Note};

fn ledger(ranks: usize) -> Ledger {
    let mut ledger = Ledger::new("j", vec![0; ranks], true).unwrap();
    for rank in 0..ranks {
        assert_eq!(ledger.began(rank, 1, 0, false), Some([false; 2]));
    }
    ledger
}

fn say(ledger: &mut Ledger, rank: usize, life: u64, line: &str) -> u64 {
    ledger.said(rank, life, line.as_bytes());
    let mut heard = 0;
    while let Some(command) = ledger.next_command(rank) {
        for answer in ledger.server.command(rank, &command.unwrap()).0 {
            ledger.answered(answer.rank, &answer.line);
            heard += if answer.rank == rank {
                answer.line.len() as u64
            } else {
                0
            };
        }
    }
    heard
}

#[test]
fn a_life_goes_on_where_its_image_was() {
    let mut ledger = ledger(2);
    let mut heard = say(&mut ledger, 0, 1, "cmd=init pmi_version=1 pmi_subversion=1\n");
    heard += say(&mut ledger, 0, 1, "cmd=put kvsname=j key=a value=1\n");
    ledger.printed(0, 1, Stdout, b"one\n");
    ledger.printed(0, 1, Stderr, b"warning\n");
    assert!(ledger.note_account((0, 1), 7, 3, Some(heard), None).is_some());
    ledger.printed(0, 1, Stdout, b"two\n");
    for life in [2, 3] {
        assert_eq!(ledger.began(0, life, 7, true), Some([true, false]));
        assert_eq!(ledger.printed(0, life, Stdout, b"two\n").new, b"");
        assert_eq!(ledger.repeats_anew(0), Some((life, [false; 2])));
        assert_eq!(ledger.repeats_anew(0), None);
        assert!(ledger.server.progress(0).initialised);
        assert_eq!(ledger.input.as_ref().unwrap().place(1), 4);
    }
    // Messages of a former life come too late.
    assert_eq!(ledger.printed(0, 2, Stdout, b"two\n").new, b"");
    assert_eq!(ledger.printed(0, 3, Stdout, b"three\n").new, b"three\n");
    assert_eq!(ledger.began(0, 4, 6, true), None, "there was no such image");
    assert_eq!(ledger.began(0, 4, 0, true), Some([true; 2]));
}

/// Another node would begin from the note of an image.
#[test]
fn what_a_note_says_of_an_account_is_all_of_it() {
    let mut ledger = ledger(1);
    let heard = say(&mut ledger, 0, 1, "cmd=init pmi_version=1 pmi_subversion=1\n");
    ledger.printed(0, 1, Stdout, b"one\ntwo, and");
    ledger.printed(0, 1, Stderr, &[0xff; 5000]);
    let noted = ledger.note_account((0, 1), 7, 3, Some(heard), None).unwrap();
    let note = Note::new("j", Protocol::Auto, (0, 7), Counts::default(), noted);
    let account = Note::read(&note.to_text()).unwrap().account;
    let read: Account = serde_json::from_value(account).unwrap();
    let kept = &ledger.ranks[0].accounts[&7];
    assert_eq!((&read.printed, read.pmi, read.read), (&kept.printed, kept.pmi, 3));
    let shown = crate::note::describe(&note.to_text()).unwrap();
    for line in [
        "printed    12 bytes on standard output, 5,000 bytes on standard error\n",
        "input      3 bytes read\n",
        "PMI        initialised; 0 barriers, 0 puts",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn nobody_begins_in_the_middle_of_a_command() {
    let mut ledger = ledger(2);
    let heard = say(&mut ledger, 0, 1, "cmd=init pmi_version=1 pmi_subversion=1\n");
    let is_noted = |ledger: &mut Ledger, heard| ledger.note_account((0, 1), 1, 0, heard, Some(1)).is_some();
    assert!(is_noted(&mut ledger, Some(heard)));
    assert!(!is_noted(&mut ledger, None), "half a line has come");
    assert!(!is_noted(&mut ledger, Some(0)), "the answer is on its way");
    ledger.said(0, 1, b"mcmd=spawn\n");
    assert!(!is_noted(&mut ledger, Some(heard)), "half a command has come");
    assert_eq!(ledger.began(0, 2, 1, false), Some([false; 2]));
    assert!(!is_noted(&mut ledger, Some(0)), "that life has ended");
    say(&mut ledger, 0, 2, "cmd=barrier_in\n");
    let noted = ledger.note_account((0, 2), 1, 0, Some(0), Some(1));
    assert!(noted.is_none(), "it waits in a barrier");
    let heard = say(&mut ledger, 1, 1, "cmd=barrier_in\n");
    assert!(ledger.note_account((1, 1), 1, 0, Some(heard), None).is_some());
    let noted = ledger.note_account((0, 2), 2, 0, Some(heard), Some(1));
    assert!(noted.is_some());
}

#[test]
fn accounts_go_with_their_images_and_come_back_with_the_job() {
    let mut ledger = ledger(1);
    for image in 1..10_u64 {
        ledger.printed(0, 1, Stdout, b"line\n");
        let oldest = image.checked_sub(2).filter(|oldest| *oldest > 0);
        assert!(ledger.note_account((0, 1), image, image, Some(0), oldest).is_some());
    }
    let numbers = |ledger: &Ledger| ledger.ranks[0].accounts.keys().copied().collect::<Vec<_>>();
    assert_eq!(numbers(&ledger), [7, 8, 9]);
    let text = serde_json::to_string(&ledger.state()).unwrap();
    let mut again = Ledger::new("other", vec![0; 5], true).unwrap();
    again.resume(serde_json::from_str(&text).unwrap());
    assert_eq!(numbers(&again), [7, 8, 9]);
    assert_eq!(again.began(0, 2, 8, true), Some([true, false]));
    assert_eq!(again.printed(0, 2, Stdout, b"line\nnew\n").new, b"new\n");
    assert_eq!(again.input.as_ref().unwrap().place(0), 8);
}

#[test]
fn what_agents_wrote_down_is_read() {
    let mut taken = Taken::default();
    taken.accept(b"one\ntwo\n");
    let mut former = Taken::default();
    former.accept(b"one\n");
    let account = json!({"printed": [former.printed(), Printed::default()], "pmi": Position::default(), "read": 5});
    let agent = json!({
        "ranks": [{
            "program": 0, "number": 3, "taken": [taken, Taken::default()], "finished": false, "ended_well": false,
            "images": {"asked": 4, "last_slot": 1, "begun": true, "files": [
                {"number": 4, "slot": 1, "account": account, "name": "rank-0.image-4", "digest": "x"}]},
        }],
        "server": Server::new("j", vec![0]), "input_ended": true,
    });
    let mut ledger = Ledger::new("j", vec![0], true).unwrap();
    ledger.resume(State::of_agent(agent).unwrap());
    assert_eq!(ledger.began(0, 4, 4, true), Some([true, false]));
    assert_eq!(ledger.printed(0, 4, Stdout, b"two\nthree\n").new, b"three\n");
    assert_eq!(ledger.input.as_ref().unwrap().place(0), 5);
}
