package reconcile

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// trip is one image on its way to a volume.
type trip struct {
	*ways
	t    *testing.T
	one  way
	v    *faultfs.Volume
	d    plan.Desired
	died chan struct{} // closed when the process is killed
}

// run is one run of the program, with whatever else the way needs.
func (p *trip) run() string {
	if p.one.run != nil {
		return p.one.run(p)
	}
	return p.converge(p.d)
}

// dies kills the process before op.
func (p *trip) dies(op faultfs.Op) {
	var died atomic.Bool
	p.v.Plan(func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.N == op.N {
			if died.CompareAndSwap(false, true) {
				close(p.died)
			}
			return faultfs.ErrStop
		}
		return nil
	})
	said := p.run()
	p.v.Restart()
	p.died = make(chan struct{})
	if !died.Load() {
		p.t.Errorf("it comes to no %s", op)
	}
	p.nothingWrong("killed before " + op.String() + ": " + said)
	p.arrives("killed before " + op.String())
	p.v.Close()
}

// fills has no room from op on.
func (p *trip) fills(op faultfs.Op) {
	var full, failed atomic.Bool
	p.v.Plan(func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.N == op.N {
			full.Store(true)
		}
		if full.Load() && needsRoom(now) {
			failed.Store(true)
			return syscall.ENOSPC
		}
		return nil
	})
	said := p.run()
	p.nothingWrong("full from " + op.String() + ": " + said)
	if !full.Load() {
		p.t.Errorf("it comes to no %s", op)
	}
	for file, size := range filesBelow(p.t, p.v.Path()) {
		// What is whole and durable needs no more room, and stays.
		whole := size == int64(len(p.content)) || size == int64(len(p.content))+sealed
		if failed.Load() && strings.HasSuffix(file, ".part") && size > 0 && !whole {
			p.t.Errorf("full from %s: %d bytes of room are not given back: %s", op, size, said)
		}
	}
	p.v.Restart()
	p.arrives("full from " + op.String())
	p.v.Close()
}

// nothingWrong asserts that no copy is ready but with the right bytes.
func (p *trip) nothingWrong(when string) {
	p.t.Helper()
	for _, c := range copiesOn(p.t, p.v) {
		if c.State == disk.Ready {
			p.right(c.ID, when)
		}
	}
}

func (p *trip) right(id disk.ID, when string) {
	p.t.Helper()
	if id.Name == "parrot" && p.one.chick != "" {
		return // its bytes are never the same; chick is made of it
	}
	got, err := os.ReadFile(filepath.Join(p.v.Path(), "backing-images", id.String(), "backing"))
	if err != nil || !bytes.Equal(got, p.content) {
		p.t.Fatalf("%s: %s is ready with other bytes: %d, error %v", when, id, len(got), err)
	}
}

// arrives runs once more, after which the images are there and nothing else is.
func (p *trip) arrives(when string) {
	p.t.Helper()
	said := p.run()
	var want []string
	for name, image := range p.d.Config.Images {
		if !readyOn(p.t, p.v, name) {
			p.t.Fatalf("%s: %s is not ready: %s", when, name, said)
		}
		p.right(image.ID, when)
		for _, file := range []string{"backing", "backing.cfg", "backing.chunks", "backing.record"} {
			want = append(want, filepath.Join("backing-images", image.ID.String(), file))
		}
	}
	slices.Sort(want)
	got := slices.Sorted(maps.Keys(filesBelow(p.t, p.v.Path())))
	if want = append(want, "longhorn-disk.cfg"); !slices.Equal(got, want) {
		p.t.Fatalf("%s: there is %q, want %q", when, got, want)
	}
}
