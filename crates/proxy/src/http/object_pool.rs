//! Pools temporary objects, such as parsed heads, so that they keep their allocations between uses.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The unused objects of one thread.
#[derive(Default)]
pub(crate) struct ObjectPool<T>(RefCell<Vec<T>>);

impl<T: Default> ObjectPool<T> {
    /// Returns a used or a new object. A used object still has its previous content.
    pub(crate) fn take_object(&self) -> PooledObject<'_, T> {
        let object = self.0.borrow_mut().pop().unwrap_or_default();
        PooledObject { pool: self, object }
    }
}

/// An object that returns to the pool when it is dropped.
pub(crate) struct PooledObject<'a, T: Default> {
    pool: &'a ObjectPool<T>,
    object: T,
}

impl<T: Default> Deref for PooledObject<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Default> DerefMut for PooledObject<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.object
    }
}

impl<T: Default> Drop for PooledObject<'_, T> {
    fn drop(&mut self) {
        let mut unused_objects = self.pool.0.borrow_mut();
        if unused_objects.len() < MAX_UNUSED_OBJECTS {
            unused_objects.push(std::mem::take(&mut self.object));
        }
    }
}

/// The maximum number of unused objects of one thread: as many as one iteration of its event loop uses at once.
const MAX_UNUSED_OBJECTS: usize = 64;
