//! What a process that has failed would have said when it and this one introduce themselves to each other
//! (MPI_Comm_spawn, MPI_Comm_connect, MPI_Intercomm_create). MPI has no other way out of these calls: so they end as if
//! it had come, and make a communicator with a failed member, of which the library above MPI tells the error.
//!
//! MPICH 5 sends: first, from a process that is not known yet, the length of its address, and the address; then the
//! length of what comes next; then the group: its size, its context, its members, their worlds, and their addresses.

use crate::matching::Room;

/// Longest name of a world.
const WORLD_BYTES: usize = 128;
/// One for all that have failed: MPI has room for 1024 of them.
const WORLD: &[u8] = b"resurgo: failed";
/// A context of no communicator.
const CONTEXT: u32 = 0x7ff0;

/// The address of a rank's first endpoint, on a host without a name.
fn address(rank: u32) -> Vec<u8> {
    let mut address = vec![0];
    address.extend_from_slice(&u64::from(rank).to_le_bytes());
    address
}

fn first_word(rank: u32) -> Vec<u8> {
    let address = address(rank);
    let mut bytes = (address.len() as u32).to_le_bytes().to_vec();
    bytes.extend(address);
    bytes
}

/// A group of this one rank.
fn group(rank: u32) -> Vec<u8> {
    let address = address(rank);
    let mut world = WORLD.to_vec();
    world.resize(WORLD_BYTES, 0);
    let mut bytes = Vec::new();
    let mut word = |word: u32| bytes.extend_from_slice(&word.to_le_bytes());
    // Its size and context; its member is the first of the first world; there is one world.
    [1, CONTEXT, 0, 0, 1].into_iter().for_each(&mut word);
    bytes.extend(world);
    let mut word = |word: u32| bytes.extend_from_slice(&word.to_le_bytes());
    // The size of the world, and the length of the address.
    [1, address.len() as u32].into_iter().for_each(&mut word);
    bytes.extend(address);
    bytes
}

fn copy(room: &Room, bytes: &[u8]) {
    room.fill(0, bytes.len().min(room.bytes()), |from, to, run| {
        // SAFETY: `fill` keeps to the receive's memory, and to as many bytes as there are.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), to, run) };
    });
}

/// Puts into the memory of a receive what `rank`, which has failed, would have sent.
pub fn fill(room: &Room, is_first_word: bool, rank: u32) {
    let group = group(rank);
    match room.bytes() {
        _ if is_first_word => copy(room, &first_word(rank)),
        4 => copy(room, &(group.len() as u32).to_le_bytes()),
        _ => copy(room, &group),
    }
}

/// The leader of such a call would have told the others of an error, which is no success of a part of it.
pub fn tell_an_error(room: &Room) {
    let words: Vec<u8> = (0..room.bytes() / 4).flat_map(|_| 1u32.to_le_bytes()).collect();
    copy(room, &words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_rank_introduces_itself_with_as_many_bytes_as_it_says() {
        let mut memory = [0xaau8; 4100];
        let piece = |memory: &mut [u8]| libc::iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: memory.len(),
        };
        fill(&Room::of(&[piece(&mut memory)]), true, 7);
        assert_eq!(memory[..14], [9, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xaa]);
        fill(&Room::of(&[piece(&mut memory[..4])]), false, 7);
        let bytes = u32::from_le_bytes(memory[..4].try_into().expect("four bytes")) as usize;
        memory = [0xaa; 4100];
        fill(&Room::of(&[piece(&mut memory[..bytes])]), false, 7);
        assert_eq!(memory[..4], [1, 0, 0, 0], "one member");
        assert_eq!(memory[bytes - 9..=bytes], [0, 7, 0, 0, 0, 0, 0, 0, 0, 0xaa]);
    }
}
