// Package heap measures the memory that a test holds.
package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
)

// gcPercent makes collections so frequent that they find what is in use for a short time.
const gcPercent = 30

// Watch returns a function that returns how much the bytes in use have grown, at most, since Watch: those that the garbage
// collections found. When a collection begins and how long it takes depends on what else the machine does, and so does the size
// of the heap at any other time.
func Watch(t testing.TB) (grown func() int64) {
	w := &watch{}
	percent := debug.SetGCPercent(gcPercent)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		w.end()
	})
	runtime.GC()
	runtime.GC() // frees what finalizers released
	base := w.sample()
	again(w)
	return func() int64 {
		runtime.GC()
		return w.sample() - base
	}
}

// watch is the most that collections found.
type watch struct {
	mu    sync.Mutex
	most  int64
	ended bool
}

// sample returns the most bytes that collections found up to the last one.
func (w *watch) sample() int64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, int64(live[0].Value.Uint64()))
	return w.most
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// again takes a sample after the next collection, and after each one that follows.
func again(w *watch) {
	runtime.AddCleanup(new([32]byte), func(w *watch) {
		w.sample()
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.ended {
			again(w)
		}
	}, w)
}
