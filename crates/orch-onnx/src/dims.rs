//! The binding of symbolic dimensions to sizes.

use crate::options::ImportOptions;
use crate::problem::{Place, Problems, Reason};
use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::tensor_shape_proto::dimension::Value as DimValue;
use std::collections::{BTreeMap, BTreeSet};

/// The sizes of symbolic dimensions: those the caller binds, and those that follow from input shapes given.
pub(crate) struct Dims<'o> {
    options: &'o ImportOptions,
    inferred: BTreeMap<String, usize>,
    /// Every name that inputs were found to bind dimensions by.
    bindable: BTreeSet<String>,
}

impl<'o> Dims<'o> {
    /// The bindings that `options` give.
    pub(crate) fn new(options: &'o ImportOptions) -> Self {
        Self { options, inferred: BTreeMap::new(), bindable: BTreeSet::new() }
    }

    /// The size bound to a symbol.
    pub(crate) fn get(&self, symbol: &str) -> Option<usize> {
        self.options.dims.get(symbol).or_else(|| self.inferred.get(symbol)).copied()
    }

    /// The name under which a dimension without one is bound.
    pub(crate) fn unnamed(input: &str, axis: usize) -> String {
        format!("{input}.{axis}")
    }

    /// The shape that the caller gives for an input.
    pub(crate) fn given_shape(&self, input: &str) -> Option<&'o [usize]> {
        self.options.input_shapes.get(input).map(Vec::as_slice)
    }

    /// Binds the symbols of `dims`, the declared shape of `input`, to the shape that the caller gives for it,
    /// where the two agree. Done for all inputs before any is bound.
    pub(crate) fn infer(&mut self, input: &str, dims: &[Dimension]) {
        let Some(given) = self.given_shape(input).filter(|given| given.len() == dims.len()) else { return };
        for (dim, &size) in dims.iter().zip(given) {
            if let Some(DimValue::DimParam(symbol)) = &dim.value {
                self.inferred.entry(symbol.clone()).or_insert(size);
            }
        }
    }

    /// Takes note of the symbols of an output: binding them is no mistake, though nothing needs it.
    pub(crate) fn note(&mut self, dims: &[Dimension]) {
        let symbols = dims.iter().filter_map(|dim| match &dim.value {
            Some(DimValue::DimParam(symbol)) if !symbol.is_empty() => Some(symbol.clone()),
            _ => None,
        });
        self.bindable.extend(symbols);
    }

    /// The sizes of an input's dimensions, or every reason why they are not known.
    pub(crate) fn bind(&mut self, input: &str, dims: &[Dimension]) -> Result<Vec<usize>, Vec<Reason>> {
        let given = self.given_shape(input);
        let mut reasons = Vec::new();
        let mut bound = Vec::new();
        for (axis, dim) in dims.iter().enumerate() {
            let hint = given.and_then(|given| given.get(axis)).copied();
            match self.bind_one(input, axis, dim, hint) {
                Ok(size) => bound.push(size),
                Err(reason) => reasons.push(reason),
            }
        }
        match given {
            Some(given) if reasons.is_empty() && given != bound => {
                let declared = format!("{bound:?}");
                Err(vec![Reason::ShapeConflict { declared, given: given.to_vec() }])
            }
            _ if reasons.is_empty() => Ok(bound),
            _ => Err(reasons),
        }
    }

    /// The size of one dimension; `hint` is what a given input shape says, which counts where the model is open.
    fn bind_one(
        &mut self,
        input: &str,
        axis: usize,
        dim: &Dimension,
        hint: Option<usize>,
    ) -> Result<usize, Reason> {
        match &dim.value {
            Some(DimValue::DimValue(size)) => {
                usize::try_from(*size).map_err(|_| Reason::NegativeDim { axis, given: *size })
            }
            Some(DimValue::DimParam(symbol)) if !symbol.is_empty() => {
                self.bindable.insert(symbol.clone());
                self.get(symbol).ok_or_else(|| Reason::UnboundDim { axis, symbol: symbol.clone() })
            }
            Some(DimValue::DimParam(_)) | None => {
                let key = Self::unnamed(input, axis);
                let size = self.get(&key).or(hint);
                self.bindable.insert(key.clone());
                size.ok_or(Reason::UnnamedDim { axis, key })
            }
        }
    }

    /// Reports bindings of the caller that met nothing. Called after all inputs are bound and all outputs noted.
    pub(crate) fn check_all_used(&self, inputs: &[String], problems: &mut Problems) {
        for name in self.options.dims.keys().filter(|&name| !self.bindable.contains(name)) {
            let known = self.bindable.iter().cloned().collect();
            problems.add(Place::Options, Reason::UnknownDim { name: name.clone(), known });
        }
        for name in self.options.input_shapes.keys().filter(|&name| !inputs.contains(name)) {
            let reason = Reason::UnknownInput { name: name.clone(), known: inputs.to_vec() };
            problems.add(Place::Options, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(value: Option<DimValue>) -> Dimension {
        Dimension { value, denotation: None }
    }

    fn symbol(name: &str) -> Dimension {
        dim(Some(DimValue::DimParam(name.into())))
    }

    fn fixed(size: i64) -> Dimension {
        dim(Some(DimValue::DimValue(size)))
    }

    #[test]
    fn every_open_dimension_is_reported() {
        let options = ImportOptions::default();
        let reasons =
            Dims::new(&options).bind("x", &[symbol("n"), fixed(3), dim(None), fixed(-1)]).unwrap_err();
        assert_eq!(
            reasons,
            [
                Reason::UnboundDim { axis: 0, symbol: "n".into() },
                Reason::UnnamedDim { axis: 2, key: "x.2".into() },
                Reason::NegativeDim { axis: 3, given: -1 },
            ]
        );
    }

    #[test]
    fn names_keys_and_shapes_bind() {
        let options = ImportOptions::default().dim("n", 4).dim("x.1", 5);
        assert_eq!(Dims::new(&options).bind("x", &[symbol("n"), dim(None)]), Ok(vec![4, 5]));

        let mut options = ImportOptions::default();
        options.input_shapes.insert("x".into(), vec![2, 3]);
        let mut dims = Dims::new(&options);
        dims.infer("x", &[symbol("n"), dim(None)]);
        assert_eq!(dims.bind("x", &[symbol("n"), dim(None)]), Ok(vec![2, 3]));
        assert_eq!(dims.bind("y", &[symbol("n")]), Ok(vec![2]));
        assert_eq!(dims.bind("x", &[fixed(2), fixed(7)]).unwrap_err().len(), 1);
        assert_eq!(dims.bind("x", &[fixed(2)]).unwrap_err().len(), 1);
    }
}
