package reconcile

import (
	"maps"
	"sync"
)

// leaving are the copies of this node that were withdrawn. Any goroutine may look.
type leaving struct {
	mu   sync.Mutex
	keys map[Key]bool
}

func (l *leaving) add(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[Key]bool{}
	}
	l.keys[key] = true
}

// keep takes back all withdrawals but those that are said to go on.
func (l *leaving) keep(goesOn func(Key) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.keys, func(key Key, _ bool) bool { return !goesOn(key) })
}

// all returns what is withdrawn at this moment.
func (l *leaving) all() map[Key]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.keys)
}
