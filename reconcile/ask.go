package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Errors of what is asked of a Loop.
var (
	// ErrNotDeclared: no image of that name is declared.
	ErrNotDeclared = errors.New("not declared")
	// ErrNotReady: there is no copy here that could be asked about.
	ErrNotReady = errors.New("no ready copy on the disks of this node")
)

// cleanupHolds is how long a copy that was to be cleaned up and could not be is still
// to go as soon as it can.
const cleanupHolds = time.Minute

// ask is what is wanted of the goroutine of a Loop.
type ask struct {
	note    func()
	planned chan *View // gets the next round
}

func (a ask) answer(v *View) {
	if a.planned != nil {
		a.planned <- v
	}
}

// ask has note called by the goroutine of the loop, and returns the next round.
func (l *Loop) ask(ctx context.Context, note func()) (*View, error) {
	request := ask{note, make(chan *View, 1)}
	select {
	case l.asks <- request:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case v := <-request.planned:
		return v, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
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
	for ref, seen := range v.Observed.Disks {
		if _, ready := seen.ready(declared.ID); ready && v.Desired.mine(ref) {
			keys = append(keys, Key{ref, declared.ID})
		}
	}
	if len(keys) == 0 {
		return 0, fmt.Errorf("verify %s: %w", image, ErrNotReady)
	}
	_, err = l.ask(ctx, func() {
		for _, key := range keys {
			l.asked[key] = true
		}
	})
	return len(keys), err
}

// Cleanup asks for the copy of an image on a disk of this node to go before its
// interval is over, if nobody wants it there and the image can do without. An empty
// uuid is that of the declared image. It returns what is planned about the copy: a
// deletion, which is tried for a minute, or why there is none.
func (l *Loop) Cleanup(ctx context.Context, image, uuid string, on schema.DiskRef) (Action, error) {
	v := l.View()
	key := Key{on, disk.ID{Name: image, UUID: uuid}}
	if uuid == "" {
		declared, ok := schema.Image{}, false
		if v != nil {
			declared, ok = v.Desired.Config.Images[image]
		}
		if !ok {
			return Action{}, fmt.Errorf("clean up %s: %w", image, ErrNotDeclared)
		}
		key.ID = declared.ID
	}
	if v == nil || !v.Desired.mine(on) || !v.Observed.has(key) {
		return Action{}, fmt.Errorf("clean up %s: %w", key, ErrNotReady)
	}
	v, err := l.ask(ctx, func() { l.cleanups[key] = time.Now().Add(cleanupHolds) })
	if err != nil {
		return Action{}, err
	}
	for _, a := range v.Plan.Actions {
		if a.Key() == key {
			return a, nil
		}
	}
	return newAction(Wait, key, "the configuration wants a copy on this disk", 0), nil
}

func (o Observed) has(key Key) bool {
	_, there := o.Disks[key.Disk].Copies[key.ID]
	return there
}

// toGo are the copies that somebody asked to have removed, not too long ago.
func (l *Loop) toGo() map[Key]bool {
	now, keys := time.Now(), map[Key]bool{}
	maps.DeleteFunc(l.cleanups, func(_ Key, until time.Time) bool { return now.After(until) })
	for key := range l.cleanups {
		keys[key] = true
	}
	return keys
}

// forgetRefused forgets what was asked about copies that stay: it is said to who asked,
// and must not come true later. What is only tried again in a moment holds.
func (l *Loop) forgetRefused(p Plan, o Observed) {
	goes := map[Key]bool{}
	for _, a := range p.Actions {
		goes[a.Key()] = goes[a.Key()] || a.Kind.drops()
	}
	maps.DeleteFunc(l.cleanups, func(key Key, _ time.Time) bool { return !goes[key] && !o.Tries[key].Kind.drops() })
}

// forgetGone forgets what was asked about copies that are not there any more.
func (l *Loop) forgetGone(o Observed) {
	maps.DeleteFunc(l.cleanups, func(key Key, _ time.Time) bool {
		return o.Disks[key.Disk].Problem == "" && !o.has(key)
	})
}
