//! The domain. There is one engine per process; the domain owns it, the other objects point to it.

use super::*;
use super::{av, counter, cq, endpoint, mr};
use crate::engine::Engine;
use crate::info::{MR_BASIC, MR_PROV_KEY, MR_VIRT_ADDR};
use crate::node::Node;
use std::ffi::{c_int, c_void};

#[repr(C)]
pub struct Domain {
    object: FidDomain,
    pub engine: *mut Engine,
}

static DOMAIN_FID: FidOps = Ops::new([Call(close as *const ()), OK, NO, NO, NO, NO]);
static DOMAIN: Ops<11> = Ops::new([
    Call(av::open as *const ()),
    Call(cq::open as *const ()),
    Call(endpoint::open as *const ()),
    NO,
    Call(counter::open as *const ()),
    NO,
    NO,
    NO,
    NO,
    NO,
    NO,
]);
static DOMAIN_MR: Ops<3> = Ops::new([
    Call(mr::reg as *const ()),
    Call(mr::regv as *const ()),
    Call(mr::regattr as *const ()),
]);

pub(super) unsafe extern "C" fn open(
    _fabric: *mut FidFabric,
    info: *const FiInfo,
    domain: *mut *mut Domain,
    context: *mut c_void,
) -> c_int {
    let engine = match begin() {
        Ok(engine) => engine,
        Err(reason) => {
            eprintln!("resurgo: {reason}");
            return -FI_EOTHER;
        }
    };
    engine.calls.in_use = true;
    // SAFETY: the info that getinfo made, with its attributes.
    let mr_mode = unsafe { (*info).domain_attr.as_ref().map_or(0, |attributes| attributes.mr_mode) };
    engine.calls.rma.virtual_addresses = mr_mode & (MR_VIRT_ADDR | MR_BASIC) != 0;
    engine.calls.rma.own_keys = mr_mode & (MR_PROV_KEY | MR_BASIC) != 0;
    let object = FidDomain {
        fid: fid(FI_CLASS_DOMAIN, context, &DOMAIN_FID),
        ops: &DOMAIN,
        mr: &DOMAIN_MR,
    };
    // SAFETY: the caller's place for the answer.
    unsafe { *domain = hand_out(Domain { object, engine }) };
    crate::claim::hide();
    0
}

/// The engine of this process: a new one, or that of a domain which was closed.
fn begin() -> Result<&'static mut Engine, String> {
    // SAFETY: it lives as long as the process; MPI libraries let one thread at a time into the provider.
    if let Some(engine) = unsafe { crate::engine::images::known().as_mut() } {
        if engine.calls.in_use {
            return Err(
                "the MPI library opens a second domain beside the first, which is not supported \
                        (is MPIR_CVAR_CH4_NUM_VCIS set? It must be 1)"
                    .into(),
            );
        }
        engine.reopen();
        return Ok(engine);
    }
    let node = Node::attach().map_err(|error| error.0)?;
    if node.replays() || node.waves {
        crate::imports::redirect(&node);
    }
    crate::engine::images::enable(&node);
    let engine = hand_out(Engine::new(node));
    crate::engine::images::know(engine);
    // SAFETY: just made, and never freed.
    Ok(unsafe { &mut *engine })
}

/// Keeps the node memory mapped and the engine alive: the MPI library may begin again.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    crate::claim::show();
    // SAFETY: an open domain; its engine lives as long as the process.
    unsafe { (*(*fid.cast::<Domain>()).engine).calls.in_use = false };
    // SAFETY: libfabric's contract for close.
    unsafe { drop_object::<Domain>(fid) }
}
