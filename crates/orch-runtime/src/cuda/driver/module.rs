//! Compiled code on a device, and launching it.

use super::cubin;
use super::device::{Capability, Context};
use super::error::{CudaError, code};
use super::loader::Driver;
use super::ptx::{self, PtxHeader};
use super::stream::Stream;
use super::sys::{
    Attribute, AttributeValue, DriverHandle, DriverStatus, LaunchConfig, function_attribute, jit_option,
    launch_attribute,
};
use std::borrow::Cow;
use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::sync::Arc;

/// A loaded module. It stays loaded until the last clone and the last [`Function`] from it are gone.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    context: Context,
    handle: DriverHandle,
    name: String,
}

// SAFETY: a module may be used from any thread, and from several at once.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A kernel of a module. Its code is trusted (see the crate's documentation): its parameters are the
/// pointers and tensor maps of its launches, and it accesses only the ranges that its launches list.
#[derive(Clone)]
pub struct Function {
    module: Module,
    handle: DriverHandle,
    symbol: Arc<str>,
}

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The resources of an SM that a kernel uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FunctionAttributes {
    /// Registers of a thread.
    pub registers: u32,
    /// Memory of a thread outside of registers: spilled values and arrays.
    pub local_bytes: u32,
    /// Static shared memory of a CTA: arrays that the code declares with their size.
    pub static_shared_bytes: u32,
    /// Threads that a CTA may have, given the registers of a thread.
    pub max_block: u32,
}

/// How a kernel is launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchShape {
    /// CTAs of the grid, which is one-dimensional.
    pub grid: u32,
    /// Threads of a CTA, which is one-dimensional.
    pub block: u32,
    /// CTAs of a cluster; 1 for a launch without clusters. It divides `grid`.
    pub cluster: u32,
    /// Dynamic shared memory of a CTA.
    pub shared_bytes: u32,
    /// True for programmatic dependent launch: the kernel may start before those that it depends on have ended, because it
    /// executes `griddepcontrol.wait` before it accesses memory that they write.
    pub is_programmatic: bool,
    /// True for a cooperative launch: all CTAs run at the same time, because they wait for each other. It does not start early.
    pub is_cooperative: bool,
}

/// CTAs of a cluster that every device with clusters supports.
const PORTABLE_CLUSTER: u32 = 8;

impl Module {
    /// Loads a cubin, or PTX, which the driver compiles; messages refer to it as `name`.
    ///
    /// # Errors
    /// If it is for another compute capability, or the driver does not load or compile it.
    pub fn load(context: &Context, name: &str, image: &[u8]) -> Result<Self, CudaError> {
        let info = context.device().info();
        let ptx = PtxHeader::of(image);
        let arch = match ptx {
            Some(PtxHeader { capability: Capability { major, minor }, .. }) => {
                Some(format!("compute_{major}{minor}"))
            }
            None => cubin::capability(image).map(|Capability { major, minor }| format!("sm_{major}{minor}")),
        };
        if let Some(arch) = arch.filter(|arch| !info.capability.runs(arch)) {
            return Err(CudaError::WrongArch {
                module: name.to_owned(),
                arch,
                device: info.name.clone(),
                capability: info.capability,
            });
        }
        let driver = context.enter()?;
        let image = driver.accepted(name, image)?;
        let (handle, status, log) = driver.load_module(&image);
        match driver.check(status, || format!("loading `{name}`")) {
            Ok(()) => Ok(Self(Arc::new(Loaded { context: context.clone(), handle, name: name.to_owned() }))),
            Err(CudaError::Driver { name: error, message, .. }) if code::NOT_LOADABLE.contains(&status) => {
                let (module, driver) = (name.to_owned(), driver.version());
                Err(match ptx {
                    Some(_) => {
                        let (device, reason) = (info.name.clone(), format!("{error} ({message})"));
                        CudaError::NotCompiled { module, driver, device, reason, log }
                    }
                    None => CudaError::NotLoadable { module, driver, name: error, message },
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn function(&self, symbol: &str) -> Result<Function, CudaError> {
        let driver = self.0.context.enter()?;
        // No kernel has a name with a NUL in it, nor the empty name that replaces it.
        let name = CString::new(symbol).unwrap_or_default();
        let doing = || format!("looking for kernel `{symbol}` in `{}`", self.0.name);
        // SAFETY: the pointer is to a handle, the name ends with NUL, and the module lives as long as `self`.
        let find = |found| unsafe { (driver.api.module_function)(found, self.0.handle, name.as_ptr()) };
        Ok(Function { module: self.clone(), handle: driver.create(doing, find)?, symbol: symbol.into() })
    }
}

impl Driver {
    /// The image as the driver takes it: PTX of a later version than the driver's is declared to be of that, where its meaning is
    /// the same.
    ///
    /// # Errors
    /// If it may not be.
    pub fn accepted<'a>(&self, name: &str, image: &'a [u8]) -> Result<Cow<'a, [u8]>, CudaError> {
        let Some(header) = PtxHeader::of(image) else { return Ok(Cow::Borrowed(image)) };
        let newest = ptx::newest(self.version());
        ptx::for_version(image, newest).ok_or_else(|| CudaError::PtxTooNew {
            module: name.to_owned(),
            found: header.version,
            newest,
            driver: self.version(),
        })
    }

    /// The module of an image for the current context, the status, and what the driver's compiler said of an error.
    fn load_module(&self, image: &[u8]) -> (DriverHandle, DriverStatus, String) {
        const LOG_BYTES: usize = 8 << 10;
        let mut handle: DriverHandle = std::ptr::null_mut();
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
        let size = std::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), size];
        // The copy ends with a NUL, which ends PTX, and what is no image after all.
        let image = [image, &[0]].concat();
        // SAFETY: the driver takes the size from the image, whose content it trusts, as this crate does. There are two options, whose
        // values are a buffer and its size.
        let status = unsafe {
            (self.api.module_load)(
                &raw mut handle,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
        (handle, status, String::from_utf8_lossy(said).trim().to_owned())
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, and not used after this.
        self.context.release(|driver| unsafe { (driver.api.module_unload)(self.handle) });
    }
}

impl Function {
    /// Its name.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// The resources of an SM that it uses.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn attributes(&self) -> Result<FunctionAttributes, CudaError> {
        let attribute = |id| Ok(u32::try_from(self.attribute(id)?).unwrap_or(0));
        Ok(FunctionAttributes {
            registers: attribute(function_attribute::NUM_REGS)?,
            local_bytes: attribute(function_attribute::LOCAL_SIZE_BYTES)?,
            static_shared_bytes: attribute(function_attribute::SHARED_SIZE_BYTES)?,
            max_block: attribute(function_attribute::MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// Opts in to launches of this shape, whose dynamic shared memory or cluster may exceed what needs no opt-in.
    ///
    /// # Errors
    /// If the device does not support the shape.
    pub fn allow(&self, shape: &LaunchShape) -> Result<(), CudaError> {
        let required = c_int::try_from(shape.shared_bytes).unwrap_or(c_int::MAX);
        if required > self.attribute(function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES)? {
            self.set_attribute(function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, required, shape)?;
        }
        if shape.cluster > PORTABLE_CLUSTER {
            self.set_attribute(function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, shape)?;
        }
        Ok(())
    }

    /// Enqueues a launch with these addresses as arguments. The shape has been [allowed](Self::allow).
    ///
    /// # Errors
    /// If the device does not support the shape. Faults of the kernel are reported by a later call.
    pub fn launch(&self, stream: &Stream, shape: &LaunchShape, arguments: &[u64]) -> Result<(), CudaError> {
        let pointers: Vec<*mut c_void> =
            arguments.iter().map(|argument| (&raw const *argument).cast_mut().cast()).collect();
        // SAFETY: each pointer is to an argument, and they live through the call.
        unsafe { self.launch_with(stream, shape, &pointers) }
    }

    /// As [`launch`](Self::launch), with pointers to the arguments.
    ///
    /// # Safety
    /// There must be as many pointers as the kernel has parameters, each to an address or a tensor map, as the parameter requires.
    pub(in crate::cuda) unsafe fn launch_with(
        &self,
        stream: &Stream,
        shape: &LaunchShape,
        pointers: &[*mut c_void],
    ) -> Result<(), CudaError> {
        let driver = self.module.0.context.enter()?;
        let attributes = shape.attributes();
        let config = shape.config(stream.handle(), &attributes);
        // SAFETY: the driver copies configuration and arguments before it returns; the kernel is trusted with them.
        let status = unsafe {
            (driver.api.launch)(&raw const config, self.handle, pointers.as_ptr(), std::ptr::null())
        };
        driver.check(status, || format!("launching {}", self.described(shape)))
    }

    /// Name and shape, for messages.
    pub(in crate::cuda) fn described(&self, shape: &LaunchShape) -> String {
        let LaunchShape { grid, block, cluster, shared_bytes, .. } = shape;
        let cluster = if *cluster > 1 { format!(" in clusters of {cluster}") } else { String::new() };
        format!(
            "kernel `{}` ({grid} blocks of {block} threads{cluster}, {shared_bytes} bytes of dynamic shared memory)",
            self.symbol
        )
    }

    pub(in crate::cuda) fn handle(&self) -> DriverHandle {
        self.handle
    }

    fn attribute(&self, id: c_int) -> Result<c_int, CudaError> {
        let driver = self.module.0.context.enter()?;
        let mut value = 0;
        // SAFETY: the pointer is to a `c_int`, and the function lives as long as its module.
        let status = unsafe { (driver.api.function_attribute)(&raw mut value, id, self.handle) };
        driver.check(status, || format!("describing kernel `{}`", self.symbol))?;
        Ok(value)
    }

    fn set_attribute(&self, id: c_int, value: c_int, shape: &LaunchShape) -> Result<(), CudaError> {
        let driver = self.module.0.context.enter()?;
        // SAFETY: the function lives as long as its module.
        let status = unsafe { (driver.api.function_set_attribute)(self.handle, id, value) };
        driver.check(status, || format!("preparing {}", self.described(shape)))
    }
}

/// The attributes of a launch: at most a cluster dimension, that it is cooperative, and programmatic stream serialization.
pub(in crate::cuda) struct LaunchAttributes {
    list: [Attribute; 3],
    count: u32,
}

impl LaunchShape {
    /// A launch of `grid` CTAs of `block` threads, without clusters and dynamic shared memory.
    pub fn new(grid: u32, block: u32) -> Self {
        Self { grid, block, cluster: 1, shared_bytes: 0, is_programmatic: false, is_cooperative: false }
    }

    /// What no device supports, as clauses that begin with a verb.
    pub(in crate::cuda) fn violations(&self) -> Vec<String> {
        const MAX_BLOCK: u32 = 1024;
        const MAX_GRID: u32 = i32::MAX as u32;
        let mut violations = Vec::new();
        if !(1..=MAX_GRID).contains(&self.grid) || !(1..=MAX_BLOCK).contains(&self.block) {
            violations.push(format!("launches {} blocks of {} threads", self.grid, self.block));
        }
        if self.cluster == 0 || !self.grid.is_multiple_of(self.cluster) {
            violations.push(format!("launches {} blocks in clusters of {}", self.grid, self.cluster));
        }
        violations
    }

    /// The attributes that a kernel has as a node of a graph too: those of a cluster, and of a cooperative launch.
    pub(in crate::cuda) fn node_attributes(&self) -> impl Iterator<Item = (c_int, AttributeValue)> {
        let cluster =
            (self.cluster > 1).then(|| (launch_attribute::CLUSTER_DIMENSION, words(&[self.cluster, 1, 1])));
        let cooperative = self.is_cooperative.then(|| (launch_attribute::COOPERATIVE, words(&[1])));
        [cluster, cooperative].into_iter().flatten()
    }

    pub(in crate::cuda) fn attributes(&self) -> LaunchAttributes {
        let early =
            self.is_programmatic.then(|| (launch_attribute::PROGRAMMATIC_STREAM_SERIALIZATION, words(&[1])));
        let mut attributes = LaunchAttributes { list: [attribute(0, words(&[])); 3], count: 0 };
        for (id, value) in self.node_attributes().chain(early) {
            attributes.list[attributes.count as usize] = attribute(id, value);
            attributes.count += 1;
        }
        attributes
    }

    /// The configuration, which points to the attributes.
    fn config(&self, stream: DriverHandle, attributes: &LaunchAttributes) -> LaunchConfig {
        LaunchConfig {
            grid: [self.grid, 1, 1],
            block: [self.block, 1, 1],
            shared_bytes: self.shared_bytes,
            stream,
            attributes: attributes.list.as_ptr(),
            attribute_count: attributes.count,
        }
    }
}

fn attribute(id: c_int, value: AttributeValue) -> Attribute {
    Attribute { id, padding: [0; 4], value }
}

fn words(values: &[u32]) -> AttributeValue {
    let mut words = [0; 16];
    words[..values.len()].copy_from_slice(values);
    AttributeValue(words)
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({})", self.0.name)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} of {})", self.symbol, self.module.0.name)
    }
}
