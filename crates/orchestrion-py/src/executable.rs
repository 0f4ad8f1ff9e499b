//! Executables and contexts: how a call goes from Python objects to a run and back.

use crate::device::{self, OnGpu};
use crate::scratch::UsedScratch;
use crate::tensors::{Given, Library, NewOutput, Port};
use crate::{errors, tensors};
use orchestrion::manifest::Manifest;
use orchestrion::report::Measurements;
use orchestrion::{
    DType, DeviceRun, Error, Model, Overlap, OverlapWith, RunContext, Stream, Tensor, TensorView,
    TensorViewMut, emit, first_overlap, plan_text, report, verification,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled model.
#[pyclass(frozen, name = "Executable", module = "orchestrion._native")]
pub struct PyExecutable {
    inner: Arc<orchestrion::Executable>,
    ports: Arc<Ports>,
    scratch: UsedScratch,
    /// The model that it was compiled from, if this process did it.
    model: Option<Arc<Model>>,
}

/// Working memory of an executable for one run at a time.
#[pyclass(frozen, name = "Context", module = "orchestrion._native")]
pub struct PyContext {
    inner: Mutex<RunContext>,
    executable: Arc<orchestrion::Executable>,
    ports: Arc<Ports>,
    scratch: UsedScratch,
}

/// Inputs and outputs of a model.
pub struct Ports {
    /// The inputs.
    pub inputs: Vec<Port>,
    /// The outputs.
    pub outputs: Vec<Port>,
    /// The constants that can be replaced.
    pub updatable: Vec<Port>,
}

impl PyExecutable {
    /// Wraps a loaded executable.
    ///
    /// # Errors
    /// `InternalError` if its manifest names an unknown type.
    pub fn new(py: Python<'_>, inner: orchestrion::Executable, model: Option<Model>) -> PyResult<Self> {
        let ports = Arc::new(Ports::of(py, inner.manifest())?);
        let scratch = UsedScratch::default();
        Ok(Self { inner: Arc::new(inner), ports, scratch, model: model.map(Arc::new) })
    }

    /// Its inputs and outputs.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The working memory that its runs on tensors of PyTorch have used.
    pub fn scratch(&self) -> &UsedScratch {
        &self.scratch
    }

    /// What runs.
    pub fn inner(&self) -> &orchestrion::Executable {
        &self.inner
    }
}

#[pymethods]
impl PyExecutable {
    /// Runs: `tensors` in the model's order, the others by name; `out` is memory for the outputs.
    #[pyo3(signature = (tensors, named, out=None))]
    fn run<'py>(
        &self,
        tensors: &Bound<'py, PyTuple>,
        named: &Bound<'py, PyDict>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = tensors.py();
        let objects = self.ports.arguments(tensors, named)?;
        let given = self.ports.given(&objects)?;
        let is_on_gpu = given.iter().any(|given| given.gpu().is_some());
        if let Some(gpu) = self.inner.gpu().filter(|_| is_on_gpu) {
            let run = |stream: &Arc<Stream>, run: &DeviceRun<'_>| self.inner.run_on_device(stream, run);
            let place = OnGpu { executable: &self.inner, gpu, scratch: &self.scratch };
            return self.ports.call_on_device(place, &objects, given, out, run, py);
        }
        let run = |inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]| {
            py.detach(|| self.inner.run_views(inputs, outputs))
        };
        self.ports.call(&objects, given, out, run, py)
    }

    /// Working memory of its own for runs beside others.
    fn context(&self, py: Python<'_>) -> PyResult<PyContext> {
        let inner = self.inner.context().map_err(|error| errors::exception(py, error))?;
        let (executable, ports) = (Arc::clone(&self.inner), Arc::clone(&self.ports));
        Ok(PyContext { inner: Mutex::new(inner), executable, ports, scratch: UsedScratch::default() })
    }

    /// Name, element type and shape of each input.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> Vec<(&str, &'static str, Bound<'py, PyTuple>)> {
        self.ports.inputs.iter().map(|port| port.described(py)).collect()
    }

    /// Name, element type and shape of each output.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> Vec<(&str, &'static str, Bound<'py, PyTuple>)> {
        self.ports.outputs.iter().map(|port| port.described(py)).collect()
    }

    /// Name, element type and shape of each constant that can be replaced.
    #[getter]
    fn updatable<'py>(&self, py: Python<'py>) -> Vec<(&str, &'static str, Bound<'py, PyTuple>)> {
        self.ports.updatable.iter().map(|port| port.described(py)).collect()
    }

    /// Replaces constants, by name: all of them or none.
    fn set_constants(&self, py: Python<'_>, values: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut tensors = Vec::with_capacity(values.len());
        for (name, value) in values {
            let name: String = name.extract()?;
            let tensor = tensors::owned(&value, &name)?;
            tensors.push((name, tensor));
        }
        let values: Vec<(&str, Tensor)> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        py.detach(|| self.inner.set_constants(&values)).map_err(|error| errors::exception(py, error))
    }

    /// Writes the `.orc` file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let saved = py.detach(|| self.inner.to_artifact().save(&path));
        saved.map_err(|error| errors::exception(py, error))
    }

    /// The content of the `.orc` file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.inner.to_artifact().to_bytes());
        let bytes = bytes.map_err(|error| errors::exception(py, error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Its code as text: `c` of executables of CPUs, `cuda` of those of GPUs.
    fn emit(&self, py: Python<'_>, kind: &str) -> PyResult<String> {
        let written = py.detach(|| {
            let artifact = self.inner.to_artifact();
            match kind {
                "c" => emit::c_source(&artifact),
                _ => emit::cuda_source(&artifact),
            }
        });
        written.map_err(|error| errors::exception(py, error))
    }

    /// The plan as text; with times of its steps on `tensors` if they are given.
    #[pyo3(signature = (tensors=None))]
    fn explain(&self, py: Python<'_>, tensors: Option<&Bound<'_, PyTuple>>) -> PyResult<String> {
        let manifest = self.inner.manifest();
        let measured = match tensors {
            None => Vec::new(),
            Some(tensors) => {
                let inputs = self.ports.owned_inputs(tensors)?;
                let measured = py.detach(|| plan_text::measure(&mut self.inner.context()?, &inputs));
                measured.map_err(|error| errors::exception(py, error))?
            }
        };
        Ok(plan_text::text(manifest, &measured))
    }

    /// A page about the plan, in HTML; with times on `tensors` if they are given.
    #[pyo3(signature = (tensors=None))]
    fn report(&self, py: Python<'_>, tensors: Option<&Bound<'_, PyTuple>>) -> PyResult<String> {
        let measured = match tensors {
            None => Measurements::default(),
            Some(tensors) => {
                let inputs = self.ports.owned_inputs(tensors)?;
                let measured = py.detach(|| report::measure(&mut self.inner.context()?, &inputs));
                measured.map_err(|error| errors::exception(py, error))?
            }
        };
        Ok(report::page::page(&report::report(self.inner.manifest(), &measured), None))
    }

    /// The manifest as JSON.
    fn manifest(&self, py: Python<'_>) -> PyResult<String> {
        serde_json::to_string(self.inner.manifest())
            .map_err(|error| errors::exception(py, Error::Internal(error.to_string())))
    }

    /// Compares with the reference interpreter on `tensors`: the result as JSON. `model` is the file that it was compiled from.
    #[pyo3(signature = (tensors, model=None, tolerance=None))]
    fn verify(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyTuple>,
        model: Option<PathBuf>,
        tolerance: Option<f64>,
    ) -> PyResult<String> {
        let inputs = self.ports.owned_inputs(tensors)?;
        let verified = py.detach(|| {
            let loaded = match (&model, &self.model) {
                (Some(path), _) => {
                    let options = orchestrion::Options::default();
                    Arc::new(Model::load_for(self.inner.manifest(), path, &options)?)
                }
                (None, Some(model)) => Arc::clone(model),
                (None, None) => {
                    return Err(Error::Input(
                        "the executable was loaded from an .orc file, which does not hold its model: give the model's file \
                         (model=)"
                            .to_owned(),
                    ));
                }
            };
            verification::verify(&loaded, &mut self.inner.context()?, &inputs, tolerance)
        });
        let verified = verified.map_err(|error| errors::exception(py, error))?;
        serde_json::to_string(&verified.verification)
            .map_err(|error| errors::exception(py, Error::Internal(error.to_string())))
    }
}

#[pymethods]
impl PyContext {
    /// As of an executable; one call at a time.
    #[pyo3(signature = (tensors, named, out=None))]
    fn run<'py>(
        &self,
        tensors: &Bound<'py, PyTuple>,
        named: &Bound<'py, PyDict>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = tensors.py();
        let objects = self.ports.arguments(tensors, named)?;
        let given = self.ports.given(&objects)?;
        let is_on_gpu = given.iter().any(|given| given.gpu().is_some());
        if let Some(gpu) = self.executable.gpu().filter(|_| is_on_gpu) {
            let run = |stream: &Arc<Stream>, run: &DeviceRun<'_>| {
                self.inner.lock().unwrap_or_else(PoisonError::into_inner).run_on_device(stream, run)
            };
            let place = OnGpu { executable: &self.executable, gpu, scratch: &self.scratch };
            return self.ports.call_on_device(place, &objects, given, out, run, py);
        }
        let run = |inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]| {
            py.detach(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner).run_views(inputs, outputs))
        };
        self.ports.call(&objects, given, out, run, py)
    }
}

impl Port {
    fn described<'py>(&self, py: Python<'py>) -> (&str, &'static str, Bound<'py, PyTuple>) {
        (&self.name, self.dtype.name(), self.shape.bind(py).clone())
    }
}

impl Ports {
    fn of(py: Python<'_>, manifest: &Manifest) -> PyResult<Self> {
        let port = |port: &orchestrion::manifest::Port| {
            let unknown = || Error::Internal(format!("`{}` has the unknown type {}", port.name, port.dtype));
            let dtype = DType::from_name(&port.dtype).ok_or_else(|| errors::exception(py, unknown()))?;
            let strides = (1..=port.shape.len()).map(|axis| port.shape[axis..].iter().product::<usize>());
            let strides = PyTuple::new(py, strides.collect::<Vec<_>>())?.unbind();
            let shape = PyTuple::new(py, &port.shape)?.unbind();
            Ok(Port { name: port.name.clone(), dtype, shape, strides })
        };
        let updatable = manifest.updatable.iter().map(|constant| &constant.port);
        Ok(Self {
            inputs: manifest.inputs.iter().map(port).collect::<PyResult<_>>()?,
            outputs: manifest.outputs.iter().map(port).collect::<PyResult<_>>()?,
            updatable: updatable.map(port).collect::<PyResult<_>>()?,
        })
    }

    /// The inputs described, wherever they lie.
    fn given<'py>(&self, objects: &[Bound<'py, PyAny>]) -> PyResult<Vec<Given<'py>>> {
        let described = objects.iter().zip(&self.inputs);
        described.map(|(object, port)| Given::anywhere(object, port, "input")).collect()
    }

    /// A call on tensors in a GPU's memory.
    fn call_on_device<'py>(
        &self,
        place: OnGpu<'_>,
        objects: &[Bound<'py, PyAny>],
        given: Vec<Given<'py>>,
        out: Option<&Bound<'py, PyAny>>,
        run: impl FnOnce(&Arc<Stream>, &DeviceRun<'_>) -> Result<(), Error> + Send,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let out = out.map(|out| Ok::<_, PyErr>((out, self.out_objects(out)?))).transpose()?;
        device::call(place, self, objects, given, out, run, py)
    }

    /// A call: tensors as views, memory for outputs, the run, what is returned.
    fn call<'py>(
        &self,
        objects: &[Bound<'py, PyAny>],
        given: Vec<Given<'py>>,
        out: Option<&Bound<'py, PyAny>>,
        run: impl FnOnce(&[TensorView<'_>], &mut [TensorViewMut<'_>]) -> Result<(), Error>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut ports = given.iter().zip(&self.inputs);
        ports.try_for_each(|(given, port)| given.check_device(port, "input"))?;
        let inputs = given;
        let views: Vec<TensorView<'_>> = inputs.iter().map(Given::view).collect::<PyResult<_>>()?;
        if let Some(out) = out {
            let objects = self.out_objects(out)?;
            let mut outputs: Vec<Given<'py>> = (objects.iter().zip(&self.outputs))
                .map(|(object, port)| Given::output(object, port))
                .collect::<PyResult<_>>()?;
            self.check_apart(py, &inputs, &outputs)?;
            // SAFETY: no output overlaps another tensor of the run.
            let targets = outputs.iter_mut().map(|output| unsafe { output.view_mut() });
            let mut targets: Vec<TensorViewMut<'_>> = targets.collect::<PyResult<_>>()?;
            run(&views, &mut targets).map_err(|error| errors::exception(py, error))?;
            return Ok(out.clone());
        }
        let library = inputs.first().map_or(Library::Numpy, |input| input.library);
        let mut outputs: Vec<NewOutput<'py>> =
            (self.outputs.iter()).map(|port| NewOutput::new(py, port, library)).collect::<PyResult<_>>()?;
        // SAFETY: the memory is new.
        let targets = outputs.iter_mut().map(|output| unsafe { output.given.view_mut() });
        let mut targets: Vec<TensorViewMut<'_>> = targets.collect::<PyResult<_>>()?;
        run(&views, &mut targets).map_err(|error| errors::exception(py, error))?;
        drop(targets);
        let like = objects.first();
        let results = outputs.into_iter().zip(&self.outputs);
        let mut results = results.map(|(output, port)| output.into_object(port.dtype, like));
        match self.outputs.len() {
            1 => results.next().unwrap_or_else(|| Ok(py.None().into_bound(py))),
            _ => Ok(PyTuple::new(py, results.collect::<PyResult<Vec<_>>>()?)?.into_any()),
        }
    }

    /// The objects for the inputs, in the model's order.
    fn arguments<'py>(
        &self,
        tensors: &Bound<'py, PyTuple>,
        named: &Bound<'py, PyDict>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = tensors.py();
        if tensors.len() > self.inputs.len() {
            let (given, expected) = (tensors.len(), names(&self.inputs));
            let text = format!("{given} tensors are given, the model has {}: {expected}", self.inputs.len());
            return Err(errors::usage(py, &text));
        }
        let mut objects: Vec<Bound<'py, PyAny>> = tensors.iter().collect();
        let mut found = 0;
        for port in &self.inputs[objects.len()..] {
            let Some(object) = named.get_item(&port.name)? else {
                let text = format!(
                    "no tensor is given for input `{}`; the model has {}",
                    port.name,
                    names(&self.inputs)
                );
                return Err(errors::usage(py, &text));
            };
            found += 1;
            objects.push(object);
        }
        if found < named.len() {
            for (key, _) in named {
                let key = key.cast_into::<PyString>()?.to_string();
                let position = self.inputs.iter().position(|port| port.name == key);
                let text = match position {
                    None => format!("the model has no input `{key}`; it has {}", names(&self.inputs)),
                    Some(position) if position < tensors.len() => format!("input `{key}` is given twice"),
                    Some(_) => continue,
                };
                return Err(errors::usage(py, &text));
            }
        }
        Ok(objects)
    }

    /// The objects of `out`: one tensor if the model has one output, a sequence in the model's order, or a mapping by name.
    fn out_objects<'py>(&self, out: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = out.py();
        let objects: Vec<Bound<'py, PyAny>> = if let Ok(named) = out.cast::<PyDict>() {
            let object = |port: &Port| {
                let missing = || format!("`out` has no memory for output `{}`", port.name);
                named.get_item(&port.name)?.ok_or_else(|| errors::usage(py, &missing()))
            };
            self.outputs.iter().map(object).collect::<PyResult<_>>()?
        } else if out.is_instance_of::<PyTuple>() || out.is_instance_of::<pyo3::types::PyList>() {
            out.try_iter()?.collect::<PyResult<_>>()?
        } else {
            vec![out.clone()]
        };
        if objects.len() != self.outputs.len() {
            let (given, expected) = (objects.len(), names(&self.outputs));
            let text = format!(
                "`out` has {given} tensors, the model has {} outputs: {expected}",
                self.outputs.len()
            );
            return Err(errors::usage(py, &text));
        }
        Ok(objects)
    }

    fn check_apart(&self, py: Python<'_>, inputs: &[Given<'_>], outputs: &[Given<'_>]) -> PyResult<()> {
        let extents = |given: &[Given<'_>]| given.iter().map(Given::extent).collect::<Vec<_>>();
        let Some(Overlap { output, other }) = first_overlap(&extents(inputs), &extents(outputs)) else {
            return Ok(());
        };
        // Of two outputs the later one is at fault.
        let (mine, what, port) = match other {
            OverlapWith::Input(number) => (output, "input", &self.inputs[number]),
            OverlapWith::Output(later) => (later, "output", &self.outputs[output]),
        };
        let text = format!(
            "the memory given for output `{}` overlaps that of {what} `{}`",
            self.outputs[mine].name, port.name
        );
        Err(errors::input(py, &text))
    }

    /// Copies of tensors of Python, in the model's order.
    fn owned_inputs(&self, tensors: &Bound<'_, PyTuple>) -> PyResult<Vec<Tensor>> {
        let objects = self.arguments(tensors, &PyDict::new(tensors.py()))?;
        objects.iter().zip(&self.inputs).map(|(object, port)| tensors::owned(object, &port.name)).collect()
    }
}

fn names(ports: &[Port]) -> String {
    ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
}
