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
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/clone"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

var allOperations = flag.Bool("sources.all", false, "TestInterruptEachSource interrupts each source at each operation")

// sourceCase is a source from which parrot gets onto a disk.
type sourceCase struct {
	name   string
	source func(s *sourceFixture) string // as in the declaration of parrot
	// needsBase: the source needs a ready copy of the image base on the disk.
	needsBase bool
	// derived is the source of a second image, which is named decrypted and made from parrot. The
	// bytes of parrot then differ from those of its source. The bytes of the second image must
	// equal them, which shows that parrot is right.
	derived string
	// run replaces one run of the program, where a source needs more than that.
	run func(a *attempt) string
	// One of stride operations is interrupted; 0 stands for 5. All sources have most operations in
	// common, and start at different ones: together they interrupt nearly all.
	stride   int
	programs []string // which the source executes
}

var sourceCases = []sourceCase{
	{name: "download", source: func(s *sourceFixture) string { return fmt.Sprintf("download: {url: %q}", "file://"+s.file) }},
	{name: "restore", source: func(s *sourceFixture) string {
		return fmt.Sprintf("restore: {backupURL: %q}", "vfs://"+s.store+"?backingImage=parrot")
	}},
	{name: "export", source: func(s *sourceFixture) string { return fmt.Sprintf("exportFromVolume: {path: %q}", s.file) }},
	{name: "clone", needsBase: true, source: func(*sourceFixture) string { return "clone: {backingImage: base}" }},
	{
		name: "encrypt and decrypt", stride: 20, needsBase: true, programs: []string{"cryptsetup"},
		source: func(*sourceFixture) string {
			return "clone: {backingImage: base, encryption: encrypt, secret: vault}"
		},
		derived: "clone: {backingImage: parrot, encryption: decrypt, secret: vault}",
	},
	{name: "restore over S3", stride: 7, source: func(*sourceFixture) string {
		return fmt.Sprintf("restore: {backupURL: %q, credentials: store}", bucket+"?backingImage=parrot")
	}},
	{name: "upload", source: func(*sourceFixture) string { return "upload: {}" }, run: (*attempt).upload, stride: 9},
}

// fewSourceCases returns all cases, and with the race detector only the one with the most
// goroutines.
func fewSourceCases() []sourceCase {
	if race.Enabled {
		return sourceCases[len(sourceCases)-1:]
	}
	return sourceCases
}

// interrupts reports whether the case with index n interrupts operation i.
func (c sourceCase) interrupts(n, i int) bool {
	stride := cmp.Or(c.stride, 5)
	if race.Enabled {
		stride *= 48
	}
	return *allOperations || i%stride == n%stride
}

// TestInterruptEachSource kills the process before each operation of each source, and in another
// run makes the disk full from that operation on. No copy with wrong bytes is ever ready, and the
// next run completes the image and leaves nothing else on the disk. Package disk tests what a
// power failure leaves.
func TestInterruptEachSource(t *testing.T) {
	t.Parallel()
	// Each operation of faultfs takes a buffer of a MiB, which is pooled until the next GC.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	s := newSourceFixture(t, 3)
	sources := s.sources()
	for n, c := range sourceCases {
		t.Run(c.name, func(t *testing.T) {
			before, after := s.declare(c)
			prepared := s.prepare(t, c, before)
			defer prepared.Close()
			clean := s.newAttempt(t, c, prepared, after)
			clean.completes("without any fault")
			t.Logf("%d operations", len(mutations(clean.v.Trace())))
			for i, op := range mutations(clean.v.Trace()) {
				if !c.interrupts(n, i) {
					continue
				}
				s.newAttempt(t, c, prepared, after).killedBefore(op)
				if needsSpace(op) {
					s.newAttempt(t, c, prepared, after).fullFrom(op)
				}
			}
			clean.v.Close()
		})
	}
	if now := s.sources(); !maps.Equal(now, sources) {
		t.Errorf("the sources changed: %v, they were %v", now, sources)
	}
}

// TestDiskFullDuringEachSource lets the disk be full in the middle of an image that is larger
// than all buffers, so that the source has to handle the error, and not only the commit.
func TestDiskFullDuringEachSource(t *testing.T) {
	t.Parallel()
	s := newSourceFixture(t, 20)
	for _, c := range fewSourceCases() {
		t.Run(c.name, func(t *testing.T) {
			before, after := s.declare(c)
			prepared := s.prepare(t, c, before)
			defer prepared.Close()
			a := s.newAttempt(t, c, prepared, after)
			part := filepath.Join("backing-images", a.d.Config.Images["parrot"].ID.String(), "backing.part")
			a.fullFrom(faultfs.Op{Kind: "write", Path: part, Count: 3})
		})
	}
}

// TestEachSourceReplacesAForeignPartialFile starts with a partial file of something else under
// the same uuid. It is deleted without reading it again, which may take minutes while a client
// waits.
func TestEachSourceReplacesAForeignPartialFile(t *testing.T) {
	t.Parallel()
	s := newSourceFixture(t, 2)
	for _, c := range fewSourceCases() {
		t.Run(c.name, func(t *testing.T) {
			before, after := s.declare(c)
			prepared := s.prepare(t, c, before)
			defer prepared.Close()
			a := s.newAttempt(t, c, prepared, after)
			defer a.v.Close()
			id := a.d.Config.Images["parrot"].ID
			a.writeForeignPart(id, 24)
			a.v.Restart()
			a.completes("with a partial file of something else")
			reads := 0
			for _, op := range a.v.Trace() {
				if op.Kind == "read" && op.Path == filepath.Join("backing-images", id.String(), "backing.part") {
					reads++
				}
			}
			if reads >= 24 { // the detection of the format reads the new file a few times
				t.Errorf("the partial file was read %d times", reads)
			}
		})
	}
}

// mutations returns the operations that change something or make it durable.
func mutations(trace []faultfs.Op) []faultfs.Op {
	return slices.DeleteFunc(trace, func(op faultfs.Op) bool { return op.ChangeNumber == 0 })
}

func needsSpace(op faultfs.Op) bool {
	return slices.Contains([]string{"write", "create", "mkdir"}, op.Kind)
}

const bucket = "s3://images@us-east-1/deep"

// sourceFixture has a source of each kind with the same content.
type sourceFixture struct {
	t       *testing.T
	fs      *faultfs.FS // for the volumes of attempts
	content []byte
	dir     string // contains file and store
	file    string
	store   string // a backup store
	secrets string
	config  string // the config directory that declares the source under test
}

// newSourceFixture makes sources with a content of a number of chunks, one of them a hole, and
// half a KiB.
func newSourceFixture(t *testing.T, chunks int) *sourceFixture {
	content := fetchtest.Random(1, chunks*disk.ChunkSize+512)
	clear(content[disk.ChunkSize : 2*disk.ChunkSize])
	dir := t.TempDir()
	s := &sourceFixture{
		t: t, fs: faultfs.Mount(t), content: content, dir: dir,
		file: filepath.Join(dir, "parrot.raw"), store: filepath.Join(dir, "store"),
		secrets: t.TempDir(), config: t.TempDir(),
	}
	must(t, os.WriteFile(s.file, content, 0o600))
	must(t, os.Mkdir(s.store, 0o755))
	for file, text := range map[string]string{
		"CRYPTO_KEY_VALUE": "correct horse", "CRYPTO_PBKDF": "argon2id", "CRYPTO_PBKDF_FORCE_ITERATIONS": "4", "CRYPTO_PBKDF_MEMORY": "64",
	} {
		files.Put(t, text, s.secrets, "vault", file)
	}
	must(t, s3test.Start(t, "images").Credentials(filepath.Join(s.secrets, "store")))
	s.createBackups()
	return s
}

func (s *sourceFixture) client() fetch.Client {
	return fetch.Client{AllowAnyFile: true, SecretsDir: s.secrets}
}

// createBackups creates the backups for the sources that restore one.
func (s *sourceFixture) createBackups() {
	s.t.Helper()
	path := newDisk(s.t)
	d := s.desired(s.load(fmt.Sprintf("images: {parrot: {source: {download: {url: %q}}}}", "file://"+s.file)), path)
	s.converge(d)
	on, err := disk.Open(path)
	must(s.t, err)
	defer on.Close()
	client := s.client()
	client.AllowLoopback = true
	for target, credentials := range map[string]string{"vfs://" + s.store: "", bucket: "store"} {
		store, err := backup.Open(&client, target, credentials)
		must(s.t, err)
		must(s.t, backup.Creator{Store: store}.Create(s.t.Context(), on, d.Config.Images["parrot"].ID, &fetch.Progress{}))
		must(s.t, store.Close())
	}
}

// declare returns the configuration with the images that the case needs, and the one with
// parrot, which it writes to the config directory too.
func (s *sourceFixture) declare(c sourceCase) (before, after load.Result) {
	const settings = "settings: {allowLoopbackSources: true}\nimages: {"
	images := "parrot: {source: {" + c.source(s) + "}}"
	if c.derived != "" {
		images += ", decrypted: {source: {" + c.derived + "}}"
	}
	if c.needsBase {
		base := fmt.Sprintf("base: {source: {download: {url: %q}}}", "file://"+s.file)
		before, images = s.load(settings+base+"}"), base+", "+images
	}
	files.Put(s.t, settings+images+"}", s.config, "images.yaml")
	return before, s.load(settings + images + "}")
}

func (s *sourceFixture) load(config string) load.Result {
	return load.NewLoader().Load(s.t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "images.yaml", Data: []byte(config)}}})
}

func (s *sourceFixture) desired(r load.Result, path string) plan.Desired {
	s.t.Helper()
	if len(r.Errors) > 0 {
		s.t.Fatal(r.Errors)
	}
	d, err := plan.NewDesired(r.Loaded, "node1", []string{path})
	must(s.t, err)
	d.Removed = plan.AlwaysConfirmed
	return d
}

// converge runs the program once. It returns the log and the outcome, for failure messages.
func (s *sourceFixture) converge(d plan.Desired) string {
	var log bytes.Buffer
	r := New(s.client(), nil, slog.New(slog.NewTextHandler(&log, nil)), false)
	_, plan, err := r.Converge(s.t.Context(), d)
	return fmt.Sprintf("%sleft to do: %+v, error %v, closed: %v", &log, plan.Actions, err, r.Close())
}

// prepare returns a volume with the images that the case needs.
func (s *sourceFixture) prepare(t *testing.T, c sourceCase, before load.Result) *faultfs.Volume {
	t.Helper()
	need.Programs(t, c.programs...)
	v := s.fs.NewVolume()
	if _, err := disk.Init(v.Path()); err != nil {
		t.Fatal(err)
	}
	if c.needsBase {
		if log := s.converge(s.desired(before, v.Path())); !readyOn(t, v, "base") {
			t.Fatalf("the image base is not ready: %s", log)
		}
	}
	v.SyncAll()
	return v
}

// sources returns the files of the sources, with their sizes.
func (s *sourceFixture) sources() map[string]int64 { return filesBelow(s.t, s.dir) }

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

// attempt creates parrot from a source on a volume of its own.
type attempt struct {
	*sourceFixture
	t      *testing.T
	c      sourceCase
	v      *faultfs.Volume
	d      plan.Desired
	killed chan struct{} // closed when the process is killed
}

// newAttempt returns an attempt on a copy of the prepared volume.
func (s *sourceFixture) newAttempt(t *testing.T, c sourceCase, prepared *faultfs.Volume, after load.Result) *attempt {
	v := prepared.Survive(0) // prepare made everything durable
	return &attempt{sourceFixture: s, t: t, c: c, v: v, d: s.desired(after, v.Path()), killed: make(chan struct{})}
}

// run runs the program once. It returns what happened, for failure messages.
func (a *attempt) run() string {
	if a.c.run != nil {
		return a.c.run(a)
	}
	return a.converge(a.d)
}

// upload runs a daemon until a client has sent parrot, with or without success, or the daemon
// is killed.
func (a *attempt) upload() string {
	l := startLoop(a.t, a.config, a.v.Path())
	defer l.end()
	l.until("read", func(v *status.View) bool { return v.Loaded })
	mux := http.NewServeMux()
	mux.Handle(upload.Path, l.Uploads())
	mux.Handle(upload.Path+"/{id}", l.Uploads())
	server := httptest.NewServer(mux)
	defer server.Close()
	f, err := os.Open(a.file)
	must(a.t, err)
	defer f.Close()
	content, err := upload.NewFile(f)
	must(a.t, err)
	sent := make(chan error, 1)
	go func() {
		client := upload.Client{Base: server.URL, Transport: server.Client().Transport}
		sent <- client.Send(a.t.Context(), upload.Request{Image: "parrot", Content: content, Warn: func(error) {}}, &fetch.Progress{})
	}()
	select {
	case err := <-sent:
		return fmt.Sprintf("sent: %v", err)
	case <-a.killed:
		return "killed"
	}
}

// writeForeignPart writes a partial file of another source with a number of chunks.
func (a *attempt) writeForeignPart(id ident.ID, chunks int) {
	d, err := disk.Open(a.v.Path())
	must(a.t, err)
	defer d.Close()
	part, err := d.OpenPart(a.t.Context(), id, disk.PartOptions{})
	must(a.t, err)
	must(a.t, part.Begin(disk.PartSource{ID: "something else", Size: -1}))
	_, err = part.ReadFrom(bytes.NewReader(bytes.Repeat([]byte("x"), chunks*disk.ChunkSize)))
	must(a.t, errors.Join(err, part.Close()))
}

// killedBefore runs the program, kills it before op, and runs it again.
func (a *attempt) killedBefore(op faultfs.Op) {
	var killed atomic.Bool
	a.v.Plan(func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.Count == op.Count {
			if killed.CompareAndSwap(false, true) {
				close(a.killed)
			}
			return faultfs.ErrStop
		}
		return nil
	})
	outcome := a.run()
	a.v.Restart()
	a.killed = make(chan struct{})
	if !killed.Load() {
		a.t.Errorf("there was no operation %s", op)
	}
	a.checkReadyCopies("killed before " + op.String() + ": " + outcome)
	a.completes("killed before " + op.String())
	a.v.Close()
}

// fullFrom runs the program with a disk that is full from op on, and again with space.
func (a *attempt) fullFrom(op faultfs.Op) {
	var full, failed atomic.Bool
	a.v.Plan(func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.Count == op.Count {
			full.Store(true)
		}
		if full.Load() && needsSpace(now) {
			failed.Store(true)
			return syscall.ENOSPC
		}
		return nil
	})
	outcome := a.run()
	a.checkReadyCopies("full from " + op.String() + ": " + outcome)
	if !full.Load() {
		a.t.Errorf("there was no operation %s", op)
	}
	for file, size := range filesBelow(a.t, a.v.Path()) {
		// A complete and durable file stays, as it needs no more space.
		complete := size == int64(len(a.content)) || size == int64(len(a.content))+clone.HeaderSize
		if failed.Load() && strings.HasSuffix(file, ".part") && size > 0 && !complete {
			a.t.Errorf("full from %s: a partial file still takes %d bytes: %s", op, size, outcome)
		}
	}
	a.v.Restart()
	a.completes("full from " + op.String())
	a.v.Close()
}

// copiesOn returns the copies on a volume.
func copiesOn(t *testing.T, v *faultfs.Volume) []model.Copy {
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
	return slices.ContainsFunc(copiesOn(t, v), func(c model.Copy) bool { return c.ID.Name == name && c.State == model.Ready })
}

// checkReadyCopies checks that all ready copies have the right bytes.
func (a *attempt) checkReadyCopies(when string) {
	a.t.Helper()
	for _, c := range copiesOn(a.t, a.v) {
		if c.State == model.Ready {
			a.checkBytes(c.ID, when)
		}
	}
}

func (a *attempt) checkBytes(id ident.ID, when string) {
	a.t.Helper()
	if id.Name == "parrot" && a.c.derived != "" {
		return // encryption never gives the same bytes; the image decrypted is checked instead
	}
	got, err := os.ReadFile(filepath.Join(a.v.Path(), "backing-images", id.String(), "backing"))
	if err != nil || !bytes.Equal(got, a.content) {
		a.t.Fatalf("%s: %s is ready with other bytes: %d, error %v", when, id, len(got), err)
	}
}

// completes runs the program without faults. All images are ready then, and there is nothing
// else on the volume.
func (a *attempt) completes(when string) {
	a.t.Helper()
	outcome := a.run()
	var want []string
	for name, image := range a.d.Config.Images {
		if !readyOn(a.t, a.v, name) {
			a.t.Fatalf("%s: %s is not ready: %s", when, name, outcome)
		}
		a.checkBytes(image.ID, when)
		for _, file := range []string{"backing", "backing.cfg", "backing.chunks", "backing.record"} {
			want = append(want, filepath.Join("backing-images", image.ID.String(), file))
		}
	}
	slices.Sort(want)
	got := slices.Sorted(maps.Keys(filesBelow(a.t, a.v.Path())))
	if want = append(want, "longhorn-disk.cfg"); !slices.Equal(got, want) {
		a.t.Fatalf("%s: the volume has %q, want %q", when, got, want)
	}
}
