package reconcile

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

var everyOperation = flag.Bool("ways.all", false, "TestEveryWay breaks off each way at each operation")

func (w *ways) load(config string) schema.Result {
	return schema.NewLoader().Load(w.t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "images.yaml", Data: []byte(config)}}})
}

func (w *ways) desire(r schema.Result, path string) plan.Desired {
	w.t.Helper()
	if len(r.Errors) > 0 {
		w.t.Fatal(r.Errors)
	}
	d, err := plan.NewDesired(r, "node1", []string{path})
	must(w.t, err)
	return d
}

// converge is one run of the program. What it says goes to the test that wants to know.
func (w *ways) converge(d plan.Desired) string {
	var said bytes.Buffer
	r := New(w.client(), slog.New(slog.NewTextHandler(&said, nil)), false)
	_, plan, err := r.Converge(w.t.Context(), d)
	return fmt.Sprintf("%sleft to do: %+v, error %v, closed: %v", &said, plan.Actions, err, r.Close())
}

// prepare makes a volume that has all that the way needs.
func (w *ways) prepare(t *testing.T, one way, before schema.Result) *faultfs.Volume {
	t.Helper()
	v := w.f.NewVolume()
	if _, err := disk.Init(v.Path()); err != nil {
		t.Fatal(err)
	}
	if one.before != nil {
		if said := w.converge(w.desire(before, v.Path())); !readyOn(t, v, "egg") {
			t.Fatalf("what it needs is not there: %s", said)
		}
	}
	v.SyncAll()
	return v
}

// begin makes a trip to a copy of a volume.
func (w *ways) begin(t *testing.T, one way, prepared *faultfs.Volume, after schema.Result) *trip {
	v := prepared.Survive(0) // all of it is durable
	return &trip{ways: w, t: t, one: one, v: v, d: w.desire(after, v.Path()), died: make(chan struct{})}
}

// copiesOn returns what lies on a volume.
func copiesOn(t *testing.T, v *faultfs.Volume) []disk.Copy {
	t.Helper()
	d, err := disk.Open(v.Path())
	must(t, err)
	defer d.Close()
	list, err := d.List()
	must(t, err)
	return list.Copies
}

func readyOn(t *testing.T, v *faultfs.Volume, name string) bool {
	t.Helper()
	return slices.ContainsFunc(copiesOn(t, v), func(c disk.Copy) bool { return c.ID.Name == name && c.State == disk.Ready })
}

// TestEveryWay lets the process be killed before, and the disk be full from, each
// operation of each way that an image comes to a disk. Nothing wrong is ever ready, the
// next run ends with the image, and with nothing else. What a power cut leaves is the
// concern of package disk.
func TestEveryWay(t *testing.T) {
	t.Parallel()
	// Each operation of faultfs takes a buffer of a MiB, which is pooled until the next GC.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	w := newWays(t, 3)
	sources := w.sources()
	for turn, one := range everyWay {
		t.Run(one.name, func(t *testing.T) {
			before, after := w.declare(one)
			prepared := w.prepare(t, one, before)
			defer prepared.Close()
			clean := w.begin(t, one, prepared, after)
			clean.arrives("without any fault")
			t.Logf("%d operations", len(changes(clean.v.Trace())))
			for i, op := range changes(clean.v.Trace()) {
				// The ways have most operations in common: together they come to all.
				if !*everyOperation && i%one.stride() != turn%one.stride() {
					continue
				}
				w.begin(t, one, prepared, after).dies(op)
				if needsRoom(op) {
					w.begin(t, one, prepared, after).fills(op)
				}
			}
			clean.v.Close()
		})
	}
	if now := w.sources(); !maps.Equal(now, sources) {
		t.Errorf("of the sources %v is left, they were %v", now, sources)
	}
}

// TestFullInTheMiddle has no room for an image that is longer than what may be on its
// way to the disk: what brings it is told, and not only who commits it.
func TestFullInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWays(t, 20)
	for _, one := range sampled() {
		t.Run(one.name, func(t *testing.T) {
			before, after := w.declare(one)
			prepared := w.prepare(t, one, before)
			defer prepared.Close()
			p := w.begin(t, one, prepared, after)
			part := filepath.Join("backing-images", p.d.Config.Images["parrot"].ID.String(), "backing.part")
			p.fills(faultfs.Op{Kind: "write", Path: part, N: 3})
		})
	}
}

// changes are the operations that change something or make it durable.
func changes(trace []faultfs.Op) []faultfs.Op {
	return slices.DeleteFunc(trace, func(op faultfs.Op) bool { return op.Nth == 0 })
}

func needsRoom(op faultfs.Op) bool {
	return slices.Contains([]string{"write", "create", "mkdir"}, op.Kind)
}

// sources are the files that images come from, with their sizes.
func (w *ways) sources() map[string]int64 { return filesBelow(w.t, w.from) }

func filesBelow(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	files := map[string]int64{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			files[strings.TrimPrefix(path, dir+"/")] = info.Size()
		}
		return err
	}))
	return files
}

// TestForeignPart finds a part of something else under the same uuid. It is not read back
// before it goes: that may take minutes, in which a client is kept waiting.
func TestForeignPart(t *testing.T) {
	t.Parallel()
	w := newWays(t, 2)
	for _, one := range sampled() {
		t.Run(one.name, func(t *testing.T) {
			before, after := w.declare(one)
			prepared := w.prepare(t, one, before)
			defer prepared.Close()
			p := w.begin(t, one, prepared, after)
			defer p.v.Close()
			id := p.d.Config.Images["parrot"].ID
			p.leaveForeign(id, 24)
			p.v.Restart()
			p.arrives("with a part of something else")
			reads := 0
			for _, op := range p.v.Trace() {
				if op.Kind == "read" && op.Path == filepath.Join("backing-images", id.String(), "backing.part") {
					reads++
				}
			}
			if reads >= 24 { // the format is looked at in the end
				t.Errorf("the part was read %d times", reads)
			}
		})
	}
}

// leaveForeign leaves a part with so many chunks.
func (p *trip) leaveForeign(id disk.ID, chunks int) {
	d, err := disk.Open(p.v.Path())
	must(p.t, err)
	defer d.Close()
	part, err := d.OpenPart(p.t.Context(), id, disk.PartOptions{})
	must(p.t, err)
	must(p.t, part.Begin(disk.PartSource{ID: "something else", Size: -1}))
	_, err = part.ReadFrom(bytes.NewReader(bytes.Repeat([]byte("x"), chunks*disk.ChunkSize)))
	must(p.t, errors.Join(err, part.Close()))
}
