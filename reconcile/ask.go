package reconcile

import (
	"context"
	"errors"
	"fmt"
)

// Errors of what is asked of a Loop.
var (
	// ErrNotDeclared: no image of that name is declared.
	ErrNotDeclared = errors.New("not declared")
	// ErrNotReady: there is no copy here that could be asked about.
	ErrNotReady = errors.New("no ready copy on the disks of this node")
)

// ask is what is wanted of the goroutine of a Loop.
type ask struct {
	keys    []Key
	planned chan struct{} // closed after the next round
}

func (a ask) answer() {
	if a.planned != nil {
		close(a.planned)
	}
}

// Verify asks for the ready copies of a declared image on the disks of this node
// to be read again, and returns how many there are. It waits until that is
// planned, so that the next View has it, and not until it is done.
func (l *Loop) Verify(ctx context.Context, image string) (copies int, err error) {
	v := l.View()
	if v == nil {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotDeclared)
	}
	declared, ok := v.Desired.Config.Images[image]
	if !ok {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotDeclared)
	}
	var keys []Key
	for _, ref := range v.Desired.scene(v.Observed).own {
		if _, ready := v.Observed.Disks[ref].ready(declared.ID); ready {
			keys = append(keys, Key{ref, declared.ID})
		}
	}
	if len(keys) == 0 {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotReady)
	}
	request := ask{keys, make(chan struct{})}
	select {
	case l.asks <- request:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	select {
	case <-request.planned:
		return len(keys), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
