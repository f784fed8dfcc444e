//! The compiled kernels: fat binaries where `build.rs` found nvcc, else sources for NVRTC.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};
use cudarc::nvrtc;

use super::error::{CudaError, call};

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// One file of `cu/`.
pub(super) struct Module {
    name: &'static str,
    source: &'static str,
    fatbin: Option<&'static [u8]>,
}

/// The contract's flags; nvcc is given the same in `build.rs`.
const NVRTC_FLAGS: [&str; 5] = ["-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"];

/// Whether every file was compiled by `build.rs`.
pub(super) fn compiled() -> bool {
    MODULES.iter().all(|module| module.fatbin.is_some())
}

/// A kernel by file stem and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Function(pub(super) &'static str, pub(super) &'static str);

/// Modules loaded into one context.
pub(super) struct Modules {
    loaded: HashMap<&'static str, sys::CUmodule>,
    /// Handles, and the dynamic shared memory in bytes that each has been allowed.
    functions: RefCell<HashMap<Function, (sys::CUfunction, u32)>>,
    /// Whether a kernel's code was written for an architecture that has programmatic dependent launch.
    waits: RefCell<HashMap<sys::CUfunction, bool>>,
}

impl Modules {
    /// Loads every module into the current context. `capability` is the device's, e.g. (9, 0).
    pub(super) fn load(capability: (i32, i32)) -> Result<Self, CudaError> {
        let mut modules = Self { loaded: HashMap::new(), functions: RefCell::default(), waits: RefCell::default() };
        for module in MODULES {
            let compiled;
            let image = match module.fatbin {
                Some(fatbin) => fatbin,
                None => {
                    compiled = machine_code(module, capability)?;
                    &compiled
                }
            };
            // SAFETY: a fat binary of nvcc's or an image of NVRTC's; a context is current.
            let handle = unsafe { result::module::load_data(image.as_ptr().cast::<c_void>()) }
                .map_err(call("cuModuleLoadData", || {
                    format!("kernels/cu/{}.cu, {} bytes", module.name, image.len())
                }))?;
            modules.loaded.insert(module.name, handle);
        }
        Ok(modules)
    }

    /// A kernel's handle; `shared` is the dynamic shared memory in bytes that it must be allowed.
    pub(super) fn function(&self, function: Function, shared: u32) -> Result<sys::CUfunction, CudaError> {
        let known = self.functions.borrow().get(&function).copied();
        if let Some((handle, allowed)) = known
            && shared <= allowed
        {
            return Ok(handle);
        }
        let Function(module, name) = function;
        let sizes = || format!("{name} of kernels/cu/{module}.cu, {shared} bytes of shared memory");
        let handle = *self.loaded.get(module).unwrap_or(&std::ptr::null_mut());
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded and never unloaded while `self` lives; a null handle is refused by the driver.
        let handle =
            unsafe { result::module::get_function(handle, symbol) }.map_err(call("cuModuleGetFunction", sizes))?;
        if shared > DEFAULT_SHARED {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: `handle` is a function of a loaded module.
            unsafe { result::function::set_function_attribute(handle, attribute, shared as i32) }
                .map_err(call("cuFuncSetAttribute", sizes))?;
        }
        self.functions.borrow_mut().insert(function, (handle, shared.max(DEFAULT_SHARED)));
        Ok(handle)
    }

    /// Whether a kernel was compiled where `griddepcontrol` exists: code for older architectures leaves it out. From the first call on its
    /// multiprocessors have as much shared memory as they can: one that has less while a kernel runs on it keeps the next kernel's
    /// blocks, which would start early, waiting until it is empty.
    pub(super) fn waits(&self, handle: sys::CUfunction) -> Result<bool, CudaError> {
        if let Some(&known) = self.waits.borrow().get(&handle) {
            return Ok(known);
        }
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        // SAFETY: `handle` is a function of a loaded module.
        let version = unsafe { result::function::get_function_attribute(handle, attribute) }
            .map_err(call("cuFuncGetAttribute", String::new))?;
        if version >= 90 {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: as above; a hint in per cent.
            unsafe { result::function::set_function_attribute(handle, attribute, 100) }
                .map_err(call("cuFuncSetAttribute", String::new))?;
        }
        self.waits.borrow_mut().insert(handle, version >= 90);
        Ok(version >= 90)
    }
}

/// What every kernel may use without asking.
const DEFAULT_SHARED: u32 = 48 * 1024;

impl Drop for Modules {
    fn drop(&mut self) {
        for &module in self.loaded.values() {
            // SAFETY: loaded in `load`, and its kernels have ended: the device synchronises before it drops this.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// Names of the files of `cu/`, for [`compile`].
pub fn sources() -> impl Iterator<Item = &'static str> {
    MODULES.iter().map(|module| module.name)
}

/// Compiles a file of `cu/` by NVRTC, as [`super::Cuda::open`] does where the binary holds no machine code. Needs no device.
/// Returns machine code for the compute capability, e.g. (9, 0).
///
/// # Errors
/// `NoCompiler` without NVRTC; `Compile`, also where there is no such file.
pub fn compile(name: &'static str, capability: (i32, i32)) -> Result<Vec<u8>, CudaError> {
    match MODULES.iter().find(|module| module.name == name) {
        Some(module) => machine_code(module, capability),
        None => Err(CudaError::Compile { module: name, reason: "there is no such file".to_owned() }),
    }
}

fn machine_code(module: &Module, (major, minor): (i32, i32)) -> Result<Vec<u8>, CudaError> {
    if !super::Cuda::has_nvrtc() {
        return Err(CudaError::NoCompiler);
    }
    // Hopper's own instructions need the architecture's own target.
    let feature = if (major, minor) == (9, 0) { "a" } else { "" };
    let mut options: Vec<String> = NVRTC_FLAGS.iter().map(ToString::to_string).collect();
    options.push(format!("--gpu-architecture=sm_{major}{minor}{feature}"));
    let refused = |reason: String| CudaError::Compile { module: module.name, reason };
    let source = CString::new(module.source).map_err(|error| refused(error.to_string()))?;
    let name = CString::new(format!("{}.cu", module.name)).map_err(|error| refused(error.to_string()))?;
    let program = nvrtc::result::create_program(source.as_c_str(), Some(name.as_c_str()))
        .map_err(|error| refused(format!("{error:?}")))?;
    // SAFETY: `program` was just created and is destroyed below.
    let image = unsafe {
        nvrtc::result::compile_program(program, &options)
            .map_err(|error| {
                let log = nvrtc::result::get_program_log(program);
                let text = log.map(|log| log.iter().map(|&c| c as u8 as char).collect::<String>()).unwrap_or_default();
                refused(format!("{error:?}: {}", text.trim_end_matches(['\0', '\n'])))
            })
            .and_then(|()| cubin(program).map_err(|error| refused(format!("{error:?}"))))
    };
    // SAFETY: created above, not used again.
    let _ = unsafe { nvrtc::result::destroy_program(program) };
    image
}

/// # Safety
/// `program` has been compiled for a real architecture.
unsafe fn cubin(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::result::NvrtcError> {
    let mut bytes = 0usize;
    // SAFETY: `program` is valid; the buffer has the size that NVRTC states.
    unsafe {
        nvrtc::sys::nvrtcGetCUBINSize(program, &raw mut bytes).result()?;
        let mut image = vec![0u8; bytes];
        nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result()?;
        Ok(image)
    }
}
