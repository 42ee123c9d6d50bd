package reconcile

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/clone"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// sourceCase is how parrot gets onto a disk.
type sourceCase struct {
	name string
	// before is what is declared until the disk has all that the way needs.
	before func(w *sourceRig) string
	source func(w *sourceRig) string
	// derived is an image that is made of parrot. Parrot has other bytes than the others
	// then, and shows by chick that they are the right ones.
	derived string
	// upload is one run of the program where that needs more than to converge.
	upload func(p *attempt) string
	// sampling is how many operations there are to one that it is broken off at; 0: as many
	// as there are ways that cost little. These have most operations in common: together
	// they come to all.
	sampling int
}

// sourceCases is a way for each source.
var sourceCases = []sourceCase{
	{name: "download", source: func(w *sourceRig) string { return fmt.Sprintf("download: {url: %q}", "file://"+w.file) }},
	{name: "restore", source: func(w *sourceRig) string {
		return fmt.Sprintf("restore: {backupURL: %q}", "vfs://"+w.store+"?backingImage=parrot")
	}},
	{name: "export", source: func(w *sourceRig) string { return fmt.Sprintf("exportFromVolume: {path: %q}", w.file) }},
	{name: "clone", before: baseImage, source: func(*sourceRig) string { return "clone: {backingImage: egg}" }},
	{
		name: "encrypt and decrypt", sampling: 20,
		before:  baseImage,
		source:  func(*sourceRig) string { return "clone: {backingImage: egg, encryption: encrypt, secret: vault}" },
		derived: "clone: {backingImage: parrot, encryption: decrypt, secret: vault}",
	},
	{name: "restore over S3", sampling: 7, source: func(w *sourceRig) string {
		return fmt.Sprintf("restore: {backupURL: %q, credentials: store}", bucket+"?backingImage=parrot")
	}},
	{name: "upload", source: func(*sourceRig) string { return "upload: {}" }, upload: (*attempt).upload, sampling: 9},
}

func baseImage(w *sourceRig) string {
	return fmt.Sprintf("egg: {source: {download: {url: %q}}}", "file://"+w.file)
}

// sampled are all ways, and the one with the most goroutines with the race detector.
func sampled() []sourceCase {
	if race.Enabled {
		return sourceCases[len(sourceCases)-1:]
	}
	return sourceCases
}

func (one sourceCase) stride() int {
	stride := cmp.Or(one.sampling, 5)
	if race.Enabled {
		stride *= 48
	}
	return stride
}

const bucket = "s3://images@us-east-1/deep"

// sourceRig are the sources of one image, and volumes that it is brought to.
type sourceRig struct {
	t       *testing.T
	f       *faultfs.FS
	content []byte
	from    string // the folder of all sources
	file    string
	store   string
	secrets string
	config  string // the directory that the way under test is declared in
}

// newSourceRig makes sources of an image with so many chunks, one of them a hole, and a bit.
func newSourceRig(t *testing.T, chunks int) *sourceRig {
	content := fetchtest.Random(1, chunks*disk.ChunkSize+512)
	clear(content[disk.ChunkSize : 2*disk.ChunkSize])
	from := t.TempDir()
	w := &sourceRig{
		t: t, f: faultfs.Mount(t), content: content, from: from,
		file: filepath.Join(from, "parrot.raw"), store: filepath.Join(from, "store"),
		secrets: t.TempDir(), config: t.TempDir(),
	}
	must(t, os.WriteFile(w.file, content, 0o600))
	must(t, os.Mkdir(w.store, 0o755))
	for file, text := range map[string]string{
		"CRYPTO_KEY_VALUE": "correct horse", "CRYPTO_PBKDF": "argon2id", "CRYPTO_PBKDF_FORCE_ITERATIONS": "4", "CRYPTO_PBKDF_MEMORY": "64",
	} {
		files.Put(t, text, w.secrets, "vault", file)
	}
	must(t, s3test.Start(t, "images").Credentials(filepath.Join(w.secrets, "store")))
	w.backUp()
	return w
}

func (w *sourceRig) client() fetch.Client {
	return fetch.Client{AllowAnyFile: true, SecretsDir: w.secrets}
}

// backUp makes the backups that are restored.
func (w *sourceRig) backUp() {
	w.t.Helper()
	path := newDisk(w.t)
	one := fmt.Sprintf("images: {parrot: {source: {download: {url: %q}}}}", "file://"+w.file)
	d := w.desire(w.load(one), path)
	w.converge(d)
	on, err := disk.Open(path)
	must(w.t, err)
	defer on.Close()
	client := w.client()
	client.AllowLoopback = true
	for target, credentials := range map[string]string{"vfs://" + w.store: "", bucket: "store"} {
		store, err := backup.Open(&client, target, credentials)
		must(w.t, err)
		must(w.t, backup.Creator{Store: store}.Create(w.t.Context(), on, d.Config.Images["parrot"].ID, &fetch.Progress{}))
		must(w.t, store.Close())
	}
}

// declare returns what is declared before parrot is, and with it.
func (w *sourceRig) declare(one sourceCase) (before, after schema.Result) {
	const settings = "settings: {allowLoopbackSources: true}\nimages: {"
	images := "parrot: {source: {" + one.source(w) + "}}"
	if one.derived != "" {
		images += ", chick: {source: {" + one.derived + "}}"
	}
	if one.before != nil {
		had := one.before(w)
		before, images = w.load(settings+had+"}"), had+", "+images
	}
	files.Put(w.t, settings+images+"}", w.config, "images.yaml")
	return before, w.load(settings + images + "}")
}

// upload is one run of a daemon, in which a client sends parrot until that has ended
// well or not, or the daemon is killed.
func (p *attempt) upload() string {
	l := startLoop(p.t, p.config, p.v.Path())
	defer l.end()
	l.until("read", func(v *status.View) bool { return v.Loaded })
	mux := http.NewServeMux()
	mux.Handle(upload.Path, l.Uploads())
	mux.Handle(upload.Path+"/{id}", l.Uploads())
	server := httptest.NewServer(mux)
	defer server.Close()
	f, err := os.Open(p.file)
	must(p.t, err)
	defer f.Close()
	content, err := upload.NewFile(f)
	must(p.t, err)
	sent := make(chan error, 1)
	go func() {
		client := upload.Client{Base: server.URL, Transport: server.Client().Transport}
		sent <- client.Send(p.t.Context(), upload.Request{Image: "parrot", Content: content, Warn: func(error) {}}, &fetch.Progress{})
	}()
	select {
	case err := <-sent:
		return fmt.Sprintf("sent: %v", err)
	case <-p.killed:
		return "killed"
	}
}

// encryptionOverhead is how much longer an encrypted image is.
const encryptionOverhead = clone.HeaderSize

var allOperations = flag.Bool("sources.all", false, "TestEveryWay breaks off each way at each operation")

func (w *sourceRig) load(config string) schema.Result {
	return schema.NewLoader().Load(w.t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "images.yaml", Data: []byte(config)}}})
}

func (w *sourceRig) desire(r schema.Result, path string) plan.Desired {
	w.t.Helper()
	if len(r.Errors) > 0 {
		w.t.Fatal(r.Errors)
	}
	d, err := plan.NewDesired(r, "node1", []string{path})
	must(w.t, err)
	return d
}

// converge is one run of the program. What it says goes to the test that wants to know.
func (w *sourceRig) converge(d plan.Desired) string {
	var said bytes.Buffer
	r := New(w.client(), slog.New(slog.NewTextHandler(&said, nil)), false)
	_, plan, err := r.Converge(w.t.Context(), d)
	return fmt.Sprintf("%sleft to do: %+v, error %v, closed: %v", &said, plan.Actions, err, r.Close())
}

// prepare makes a volume that has all that the way needs.
func (w *sourceRig) prepare(t *testing.T, one sourceCase, before schema.Result) *faultfs.Volume {
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
func (w *sourceRig) begin(t *testing.T, one sourceCase, prepared *faultfs.Volume, after schema.Result) *attempt {
	v := prepared.Survive(0) // all of it is durable
	return &attempt{sourceRig: w, t: t, one: one, v: v, d: w.desire(after, v.Path()), killed: make(chan struct{})}
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

// TestInterruptEachSource lets the process be killed before, and the disk be full from, each
// operation of each way that an image comes to a disk. Nothing wrong is ever ready, the
// next run ends with the image, and with nothing else. What a power cut leaves is the
// concern of package disk.
func TestInterruptEachSource(t *testing.T) {
	t.Parallel()
	// Each operation of faultfs takes a buffer of a MiB, which is pooled until the next GC.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	w := newSourceRig(t, 3)
	sources := w.sources()
	for turn, one := range sourceCases {
		t.Run(one.name, func(t *testing.T) {
			before, after := w.declare(one)
			prepared := w.prepare(t, one, before)
			defer prepared.Close()
			clean := w.begin(t, one, prepared, after)
			clean.completes("without any fault")
			t.Logf("%d operations", len(mutations(clean.v.Trace())))
			for i, op := range mutations(clean.v.Trace()) {
				// The ways have most operations in common: together they come to all.
				if !*allOperations && i%one.stride() != turn%one.stride() {
					continue
				}
				w.begin(t, one, prepared, after).killedBefore(op)
				if needsSpace(op) {
					w.begin(t, one, prepared, after).fullFrom(op)
				}
			}
			clean.v.Close()
		})
	}
	if now := w.sources(); !maps.Equal(now, sources) {
		t.Errorf("of the sources %v is left, they were %v", now, sources)
	}
}

// TestDiskFullDuringEachSource has no room for an image that is longer than what may be on its
// way to the disk: what brings it is told, and not only who commits it.
func TestDiskFullDuringEachSource(t *testing.T) {
	t.Parallel()
	w := newSourceRig(t, 20)
	for _, one := range sampled() {
		t.Run(one.name, func(t *testing.T) {
			before, after := w.declare(one)
			prepared := w.prepare(t, one, before)
			defer prepared.Close()
			p := w.begin(t, one, prepared, after)
			part := filepath.Join("backing-images", p.d.Config.Images["parrot"].ID.String(), "backing.part")
			p.fullFrom(faultfs.Op{Kind: "write", Path: part, Count: 3})
		})
	}
}

// mutations are the operations that change something or make it durable.
func mutations(trace []faultfs.Op) []faultfs.Op {
	return slices.DeleteFunc(trace, func(op faultfs.Op) bool { return op.ChangeNumber == 0 })
}

func needsSpace(op faultfs.Op) bool {
	return slices.Contains([]string{"write", "create", "mkdir"}, op.Kind)
}

// sources are the files that images come from, with their sizes.
func (w *sourceRig) sources() map[string]int64 { return filesBelow(w.t, w.from) }

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

// TestEachSourceReplacesAForeignPartialFile finds a part of something else under the same uuid. It is not read back
// before it goes: that may take minutes, in which a client is kept waiting.
func TestEachSourceReplacesAForeignPartialFile(t *testing.T) {
	t.Parallel()
	w := newSourceRig(t, 2)
	for _, one := range sampled() {
		t.Run(one.name, func(t *testing.T) {
			before, after := w.declare(one)
			prepared := w.prepare(t, one, before)
			defer prepared.Close()
			p := w.begin(t, one, prepared, after)
			defer p.v.Close()
			id := p.d.Config.Images["parrot"].ID
			p.writeForeignPart(id, 24)
			p.v.Restart()
			p.completes("with a part of something else")
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

// writeForeignPart leaves a part with so many chunks.
func (p *attempt) writeForeignPart(id disk.ID, chunks int) {
	d, err := disk.Open(p.v.Path())
	must(p.t, err)
	defer d.Close()
	part, err := d.OpenPart(p.t.Context(), id, disk.PartOptions{})
	must(p.t, err)
	must(p.t, part.Begin(disk.PartSource{ID: "something else", Size: -1}))
	_, err = part.ReadFrom(bytes.NewReader(bytes.Repeat([]byte("x"), chunks*disk.ChunkSize)))
	must(p.t, errors.Join(err, part.Close()))
}

// attempt is one image on its way to a volume.
type attempt struct {
	*sourceRig
	t      *testing.T
	one    sourceCase
	v      *faultfs.Volume
	d      plan.Desired
	killed chan struct{} // closed when the process is killed
}

// run is one run of the program, with whatever else the way needs.
func (p *attempt) run() string {
	if p.one.upload != nil {
		return p.one.upload(p)
	}
	return p.converge(p.d)
}

// killedBefore kills the process before op.
func (p *attempt) killedBefore(op faultfs.Op) {
	var died atomic.Bool
	p.v.Plan(func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.Count == op.Count {
			if died.CompareAndSwap(false, true) {
				close(p.killed)
			}
			return faultfs.ErrStop
		}
		return nil
	})
	said := p.run()
	p.v.Restart()
	p.killed = make(chan struct{})
	if !died.Load() {
		p.t.Errorf("it comes to no %s", op)
	}
	p.checkReadyCopies("killed before " + op.String() + ": " + said)
	p.completes("killed before " + op.String())
	p.v.Close()
}

// fullFrom has no room from op on.
func (p *attempt) fullFrom(op faultfs.Op) {
	var full, failed atomic.Bool
	p.v.Plan(func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.Count == op.Count {
			full.Store(true)
		}
		if full.Load() && needsSpace(now) {
			failed.Store(true)
			return syscall.ENOSPC
		}
		return nil
	})
	said := p.run()
	p.checkReadyCopies("full from " + op.String() + ": " + said)
	if !full.Load() {
		p.t.Errorf("it comes to no %s", op)
	}
	for file, size := range filesBelow(p.t, p.v.Path()) {
		// What is whole and durable needs no more room, and stays.
		whole := size == int64(len(p.content)) || size == int64(len(p.content))+encryptionOverhead
		if failed.Load() && strings.HasSuffix(file, ".part") && size > 0 && !whole {
			p.t.Errorf("full from %s: %d bytes of room are not given back: %s", op, size, said)
		}
	}
	p.v.Restart()
	p.completes("full from " + op.String())
	p.v.Close()
}

// checkReadyCopies asserts that no copy is ready but with the right bytes.
func (p *attempt) checkReadyCopies(when string) {
	p.t.Helper()
	for _, c := range copiesOn(p.t, p.v) {
		if c.State == disk.Ready {
			p.checkBytes(c.ID, when)
		}
	}
}

func (p *attempt) checkBytes(id disk.ID, when string) {
	p.t.Helper()
	if id.Name == "parrot" && p.one.derived != "" {
		return // its bytes are never the same; chick is made of it
	}
	got, err := os.ReadFile(filepath.Join(p.v.Path(), "backing-images", id.String(), "backing"))
	if err != nil || !bytes.Equal(got, p.content) {
		p.t.Fatalf("%s: %s is ready with other bytes: %d, error %v", when, id, len(got), err)
	}
}

// completes runs once more, after which the images are there and nothing else is.
func (p *attempt) completes(when string) {
	p.t.Helper()
	said := p.run()
	var want []string
	for name, image := range p.d.Config.Images {
		if !readyOn(p.t, p.v, name) {
			p.t.Fatalf("%s: %s is not ready: %s", when, name, said)
		}
		p.checkBytes(image.ID, when)
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
