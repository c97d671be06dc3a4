//! `fi_getinfo`: what this provider offers, as far as a caller's hints fit.

use crate::ofi::*;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// Capabilities. MPI libraries fetch long active messages by remote reads. Without those, MPICH 5.0.2 sends such
/// messages in segments, and overwrites the header of a first segment that had to be put off. Windows are not served
/// natively (see `ofi/mr.rs`), so one-sided communication uses active messages.
const CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM
    | FI_RMA
    | FI_READ
    | FI_WRITE
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE;

/// The largest message that is sent without a completion.
pub const INJECT: usize = 16 << 10;
pub const IOV_LIMIT: usize = 16;
pub const MR_BASIC: c_int = 1;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;

/// Memory that `fi_freeinfo` gives back with free().
fn zeroed<T>() -> *mut T {
    // SAFETY: all of libfabric's attribute structures are valid when zero. Room behind what is known here is for
    // fields that later versions of libfabric append.
    unsafe { libc::calloc(1, std::mem::size_of::<T>() + 128).cast() }
}

fn string(text: &std::ffi::CStr) -> *mut c_char {
    // SAFETY: a C string.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Answers with one description for reliable-datagram endpoints, or -FI_ENODATA where the hints do not fit.
pub unsafe extern "C" fn getinfo(
    version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const FiInfo,
    info: *mut *mut FiInfo,
) -> c_int {
    match crate::claim::is_rank() {
        Ok(true) => {}
        Ok(false) => return -FI_ENODATA,
        Err(reason) => {
            // No other provider may serve then: say why.
            if std::env::var_os("FI_PROVIDER").is_some_and(|name| name == "resurgo") {
                static SAID: std::sync::Once = std::sync::Once::new();
                SAID.call_once(|| eprintln!("resurgo: {reason}"));
            }
            return -FI_ENODATA;
        }
    }
    // SAFETY: hints are null or a whole fi_info, whose attributes are null or whole.
    let answer = unsafe { describe(version, hints.as_ref()) };
    match answer {
        Some(answer) => {
            // SAFETY: the caller's place for the answer.
            unsafe { *info = answer };
            0
        }
        None => -FI_ENODATA,
    }
}

unsafe fn describe(version: u32, hints: Option<&FiInfo>) -> Option<*mut FiInfo> {
    // SAFETY: see `getinfo`.
    let (ep, domain, tx, rx) = unsafe {
        match hints {
            Some(hints) => (
                hints.ep_attr.as_ref(),
                hints.domain_attr.as_ref(),
                hints.tx_attr.as_ref(),
                hints.rx_attr.as_ref(),
            ),
            None => (None, None, None, None),
        }
    };
    let wanted = hints.map_or(0, |hints| hints.caps);
    if wanted & !CAPS != 0
        || ep.is_some_and(|ep| ep.ep_type != FI_EP_UNSPEC && ep.ep_type != FI_EP_RDM)
        || ep.is_some_and(|ep| ep.tx_ctx_cnt > 1 && ep.tx_ctx_cnt != usize::MAX)
        || tx.is_some_and(|tx| tx.inject_size > INJECT || tx.iov_limit > IOV_LIMIT)
    {
        return None;
    }
    let caps = if wanted == 0 {
        CAPS
    } else {
        wanted | (CAPS & (FI_LOCAL_COMM | FI_REMOTE_COMM))
    };
    let threading = match domain.map_or(0, |domain| domain.threading) {
        0 => FI_THREAD_DOMAIN,
        // Calls are serialized by the MPI library; a caller that wants the provider to do it is not served.
        FI_THREAD_SAFE => return None,
        other => other,
    };
    let progress = |wanted: Option<u32>| match wanted {
        Some(FI_PROGRESS_AUTO) => FI_PROGRESS_AUTO,
        _ => FI_PROGRESS_MANUAL,
    };
    let mr_wanted = domain.map_or(0, |domain| domain.mr_mode);
    let mr_mode = if mr_wanted & MR_BASIC != 0 {
        MR_BASIC
    } else {
        mr_wanted & (MR_VIRT_ADDR | MR_ALLOCATED | MR_PROV_KEY)
    };
    // SAFETY: freshly allocated structures, filled in field by field.
    unsafe {
        let info: *mut FiInfo = zeroed();
        let (itx, irx, iep, idomain, ifabric): (
            *mut FiTxAttr,
            *mut FiRxAttr,
            *mut FiEpAttr,
            *mut FiDomainAttr,
            *mut FiFabricAttr,
        ) = (zeroed(), zeroed(), zeroed(), zeroed(), zeroed());
        (*info).caps = caps;
        (*info).addr_format = FI_ADDR_PSMX;
        (*info).src_addrlen = 8;
        (*info).src_addr = libc::calloc(1, 8);
        (*info).tx_attr = itx;
        (*info).rx_attr = irx;
        (*info).ep_attr = iep;
        (*info).domain_attr = idomain;
        (*info).fabric_attr = ifabric;
        (*itx).caps =
            caps & !(FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE);
        (*itx).op_flags = tx.map_or(0, |tx| tx.op_flags);
        (*itx).msg_order = FI_ORDER_ALL;
        (*itx).comp_order = 0;
        (*itx).inject_size = INJECT;
        (*itx).size = 1 << 20;
        (*itx).iov_limit = IOV_LIMIT;
        (*itx).rma_iov_limit = 1;
        (*irx).caps = caps & !(FI_SEND | FI_READ | FI_WRITE);
        (*irx).op_flags = rx.map_or(0, |rx| rx.op_flags);
        (*irx).msg_order = FI_ORDER_ALL;
        (*irx).size = 1 << 20;
        (*irx).iov_limit = IOV_LIMIT;
        (*iep).ep_type = FI_EP_RDM;
        (*iep).protocol_version = 1;
        (*iep).max_msg_size = 1 << 46;
        (*iep).max_order_raw_size = 1 << 46;
        (*iep).max_order_war_size = 1 << 46;
        (*iep).max_order_waw_size = 1 << 46;
        (*iep).mem_tag_format = u64::MAX;
        (*iep).tx_ctx_cnt = 1;
        (*iep).rx_ctx_cnt = 1;
        (*idomain).name = string(c"resurgo");
        (*idomain).threading = threading;
        (*idomain).control_progress = progress(domain.map(|domain| domain.control_progress));
        (*idomain).data_progress = progress(domain.map(|domain| domain.data_progress));
        (*idomain).resource_mgmt = FI_RM_ENABLED;
        (*idomain).av_type = match domain.map_or(FI_AV_UNSPEC, |domain| domain.av_type) {
            FI_AV_MAP => FI_AV_MAP,
            _ => FI_AV_TABLE,
        };
        (*idomain).mr_mode = mr_mode;
        (*idomain).mr_key_size = 8;
        (*idomain).cq_data_size = 8;
        (*idomain).cq_cnt = 1 << 16;
        (*idomain).ep_cnt = 1;
        (*idomain).tx_ctx_cnt = 1;
        (*idomain).rx_ctx_cnt = 1;
        (*idomain).max_ep_tx_ctx = 1;
        (*idomain).max_ep_rx_ctx = 1;
        (*idomain).cntr_cnt = 1 << 16;
        (*idomain).mr_iov_limit = 1;
        (*idomain).mr_cnt = 1 << 20;
        (*idomain).caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
        (*ifabric).name = string(c"resurgo");
        (*ifabric).prov_name = null_mut();
        (*ifabric).prov_version = fi_version(0, 1);
        (*ifabric).api_version = version;
        let _: *mut c_void = (*info).dest_addr;
        Some(info)
    }
}
