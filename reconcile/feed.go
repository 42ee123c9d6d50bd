package reconcile

import "github.com/fsnotify/fsnotify"

// feed takes events from the kernel as they come, whatever its owner does
// meanwhile: fsnotify may hold its lock while it sends an error, so an owner
// that is adding a watch at that moment would wait for ever.
type feed struct {
	kernel *fsnotify.Watcher
	events chan fsnotify.Event
	lost   chan struct{} // holds one: events were lost, here or by the kernel
	done   chan struct{}
}

func newFeed() (*feed, error) {
	kernel, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	f := &feed{
		kernel: kernel,
		events: make(chan fsnotify.Event, 1024),
		lost:   make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	go f.run()
	return f, nil
}

// run ends when kernel is closed, which closes both its channels.
func (f *feed) run() {
	defer close(f.done)
	errs := f.kernel.Errors
	for {
		select {
		case e, ok := <-f.kernel.Events:
			if !ok {
				return
			}
			select {
			case f.events <- e:
			default:
				poke(f.lost)
			}
		case _, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			poke(f.lost)
		}
	}
}

func (f *feed) close() {
	f.kernel.Close() // the descriptor is gone either way
	<-f.done
}

// poke sends without waiting: where one poke waits, another says nothing new.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
