//! Arrays of `numpy`, copied out once their type and shape are right.

use crate::errors::batch;
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

/// The numbers of an array of exactly this type and one dimension.
pub fn numbers<T: Element + Copy>(field: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    shaped(field, object, 1)
}

/// As `numbers`, row by row, of an array of this many dimensions.
pub fn shaped<T: Element + Copy>(field: &str, object: &Bound<'_, PyAny>, dimensions: usize) -> PyResult<Vec<T>> {
    let wanted = || {
        let name = T::get_dtype(object.py()).to_string();
        batch(format!("{field} must be a contiguous array of {name} of {dimensions} dimensions"))
    };
    let array = object.cast::<PyArrayDyn<T>>().map_err(|_| wanted())?;
    if array.ndim() != dimensions {
        return Err(wanted());
    }
    let array = array.try_readonly().map_err(|_| wanted())?;
    array.as_slice().map(<[T]>::to_vec).map_err(|_| wanted())
}
