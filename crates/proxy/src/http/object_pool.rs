//! A pool of temporary objects, such as parsed heads, that keep their allocations between uses.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The unused values of one thread.
#[derive(Default)]
pub(crate) struct ObjectPool<T>(RefCell<Vec<T>>);

impl<T: Default> ObjectPool<T> {
    /// Returns a used or a new value. A used value still has its previous content.
    pub(crate) fn take_object(&self) -> PooledObject<'_, T> {
        let value = self.0.borrow_mut().pop().unwrap_or_default();
        PooledObject { pool: self, value }
    }
}

/// A value that returns to the pool when it is dropped.
pub(crate) struct PooledObject<'a, T: Default> {
    pool: &'a ObjectPool<T>,
    value: T,
}

impl<T: Default> Deref for PooledObject<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Default> DerefMut for PooledObject<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Default> Drop for PooledObject<'_, T> {
    fn drop(&mut self) {
        let mut unused_values = self.pool.0.borrow_mut();
        if unused_values.len() < MAX_UNUSED_VALUES {
            unused_values.push(std::mem::take(&mut self.value));
        }
    }
}

/// The maximum number of values kept by one thread: as many as one turn of its event loop uses at once.
const MAX_UNUSED_VALUES: usize = 64;
