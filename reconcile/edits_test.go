package reconcile

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/config"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

var (
	jobEdits = flag.Int("jobs.edits", 10, "number of edits of the configuration in TestJobsOutliveEdits")
	jobSeed  = flag.Uint64("jobs.seed", 1, "seed of these edits")
)

// jobKind is a kind of job that runs while the configuration is edited.
type jobKind struct {
	name   string
	op     model.Op
	copies int
	source func(*editRig) string // of parrot
	open   bool                  // without a checksum
}

var jobKinds = []jobKind{
	{name: "download", op: model.Download, source: func(e *editRig) string { return fmt.Sprintf("download: {url: %q}", e.serve("/a.raw", e.content)) }},
	{name: "packed", op: model.Download, source: func(e *editRig) string {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		w.Write(e.content)
		w.Close()
		return fmt.Sprintf("download: {url: %q}", e.serve("/a.raw.gz", packed.Bytes()))
	}},
	{name: "no checksum", op: model.Download, open: true, source: func(e *editRig) string { return fmt.Sprintf("download: {url: %q}", e.serve("/a.raw", e.content)) }},
	{name: "upload", op: model.Upload, source: func(*editRig) string { return "upload: {}" }},
	{name: "sync", op: model.Sync, copies: 2, source: func(e *editRig) string {
		e.startHolder()
		return fmt.Sprintf("download: {url: %q}", "file://"+e.file)
	}},
	{name: "local sync", op: model.Sync, copies: 2, source: func(e *editRig) string {
		e.disks["disk2"] = newDisk(e.t)
		return fmt.Sprintf("download: {url: %q}", "file://"+e.file)
	}},
	{name: "export", op: model.Export, source: func(e *editRig) string { return fmt.Sprintf("exportFromVolume: {path: %q}", e.file) }},
	{name: "restore", op: model.Restore, source: func(e *editRig) string { return fmt.Sprintf("restore: {backupURL: %q}", e.createBackup()) }},
	{name: "clone", op: model.Clone, source: func(e *editRig) string {
		e.others["base"] = fmt.Sprintf("{source: {download: {url: %q}}}", "file://"+e.file)
		return "clone: {backingImage: base}"
	}},
}

// TestJobsOutliveEdits edits the configuration at random while a job runs: nodes, disks, tags, titles, limits, mirrors,
// suspensions, other images and settings. The job must go on, and the upstream gets one request. No edit makes the result of
// the job wrong or unwanted.
func TestJobsOutliveEdits(t *testing.T) {
	t.Parallel()
	for _, kind := range jobKinds[:race.Fewer(len(jobKinds), 3)] {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			newEditRig(t, kind).run(*jobEdits)
		})
	}
}

// editRig is a manager whose job is held while its configuration is edited. The test does its rounds.
type editRig struct {
	*rand.Rand
	t       *testing.T
	kind    jobKind
	loop    *Loop
	loader  *load.Loader
	log     bytes.Buffer
	content []byte
	file    string // with the content

	// The configuration.
	source   string
	disks    map[string]string // the disks of node1: the paths
	spare    []string          // paths of disks that may be added
	nodes    map[string]string // the other nodes
	others   map[string]string // the other images
	settings map[string]string
	node     map[string]string // fields of node1
	disk     map[string]string // fields of its disks
	image    map[string]string // fields of parrot
	mirrors  []string

	jobs     *heldJobs
	send     chan struct{} // a value lets the upstream send a piece; closed: the rest
	requests atomic.Int64  // of the upstream
}

// heldJobs holds the jobs of an operation that create parrot until release is closed.
type heldJobs struct {
	system.Jobs
	op      model.Op
	release chan struct{}
	mu      sync.Mutex
	starts  map[ident.CopyRef]int
}

func (h *heldJobs) Start(ctx context.Context, o job.Order, on system.Disks, done func(error)) {
	if o.Action.Op != h.op || o.Action.Image != "parrot" {
		h.Jobs.Start(ctx, o, on, done)
		return
	}
	h.mu.Lock()
	h.starts[o.Action.CopyRef()]++
	h.mu.Unlock()
	go func() {
		select {
		case <-h.release:
			h.Jobs.Start(ctx, o, on, done)
		case <-ctx.Done():
			done(ctx.Err())
		}
	}()
}

func newEditRig(t *testing.T, kind jobKind) *editRig {
	e := &editRig{
		loader: load.NewLoader(), Rand: rand.New(rand.NewPCG(*jobSeed, 31)), t: t, kind: kind, content: fetchtest.Random(7, 8<<20), file: filepath.Join(t.TempDir(), "parrot.raw"),
		disks: map[string]string{"disk1": newDisk(t)}, spare: []string{newDisk(t), newDisk(t)}, nodes: map[string]string{}, others: map[string]string{},
		settings: map[string]string{}, node: map[string]string{}, disk: map[string]string{}, image: map[string]string{}, send: make(chan struct{}, 1),
	}
	must(t, os.WriteFile(e.file, e.content, 0o644))
	log := slog.New(slog.NewTextHandler(&e.log, nil))
	r := New(fetch.Client{AllowAnyFile: true}, peer.NewClient(func() string { return "node1" }, nil), log, false)
	e.jobs = &heldJobs{Jobs: r.system.Jobs, op: kind.op, release: make(chan struct{}), starts: map[ident.CopyRef]int{}}
	if kind.op == model.Download { // the upstream holds it
		close(e.jobs.release)
	}
	r.system.Jobs = e.jobs
	e.source = kind.source(e)
	e.loop = NewLoop(r, LoopOptions{Dir: t.TempDir(), Interval: time.Hour, Node: "node1", Log: log})
	t.Cleanup(func() { must(t, r.Close()) })
	return e
}

// serve returns the address of a body, of which each value in send lets the upstream send a piece.
func (e *editRig) serve(path string, body []byte) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.requests.Add(1)
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		w.Header().Set("Accept-Ranges", "bytes")
		w.Header().Set("ETag", `"1"`)
		for rest := body; len(rest) > 0; {
			select {
			case <-e.send:
			case <-r.Context().Done():
				return
			}
			n, err := w.Write(rest[:min(len(rest), 64<<10)])
			if rest = rest[n:]; err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}))
	e.t.Cleanup(s.Close)
	return s.URL + path
}

// startHolder starts node2 with a ready copy of parrot.
func (e *editRig) startHolder() {
	path := newDisk(e.t)
	e.ready(path, e.imageText("file://"+e.file))
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	l := NewLoop(r, LoopOptions{Node: "node2", Log: slog.New(slog.DiscardHandler)})
	s := httptest.NewServer(l.PeerServer().Handler())
	e.nodes["node2"] = fmt.Sprintf("{address: %q, disks: {disk1: {path: %q}}}", s.URL, path)
	r.round(e.t.Context(), e.desired(fmt.Sprintf("nodes: {node2: %s}\n%s", e.nodes["node2"], e.imageText("file://"+e.file)), "node2"))
	e.t.Cleanup(func() { s.Close(); must(e.t, r.Close()) })
}

func (e *editRig) imageText(url string) string {
	return fmt.Sprintf("images: {parrot: {checksum: %q, source: {download: {url: %q}}}}\n", fmt.Sprintf("%x", sha512.Sum512(e.content)), url)
}

func (e *editRig) desired(config, node string) plan.Desired {
	result := load.NewLoader().Load(e.t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(config)}}})
	d, err := plan.NewDesired(result.Loaded, node, nil)
	if len(result.Errors) > 0 || err != nil {
		e.t.Fatal(result.Errors, err)
	}
	return d
}

// ready makes the images of a configuration ready on a disk.
func (e *editRig) ready(path, images string) plan.Desired {
	d := plantest.Load(e.t, images, path)
	r := New(fetch.Client{AllowAnyFile: true}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	_, _, err := r.Converge(e.t.Context(), d)
	must(e.t, err)
	return d
}

// createBackup returns the address of a backup of the content.
func (e *editRig) createBackup() string {
	path, dir := newDisk(e.t), e.t.TempDir()
	d := e.ready(path, e.imageText("file://"+e.file))
	on, err := disk.Open(path)
	must(e.t, err)
	defer on.Close()
	store, err := backup.Open(&fetch.Client{AllowAnyFile: true}, "vfs://"+dir, "")
	must(e.t, err)
	defer store.Close()
	must(e.t, backup.Creator{Store: store}.Create(e.t.Context(), on, d.Config.Images["parrot"].ID, &fetch.Progress{}))
	return "vfs://" + dir + "?backingImage=parrot"
}

// config returns the configuration.
func (e *editRig) config() string {
	list := func(of map[string]string) string {
		var fields []string
		for name, value := range of {
			fields = append(fields, name+": "+value)
		}
		slices.Sort(fields)
		return strings.Join(fields, ", ")
	}
	var disks []string
	for name, path := range e.disks {
		disks = append(disks, fmt.Sprintf("%s: {path: %q, %s}", name, path, list(e.disk)))
	}
	slices.Sort(disks)
	image := map[string]string{"minNumberOfCopies": fmt.Sprint(max(1, e.kind.copies)), "checksum": fmt.Sprintf("%q", fmt.Sprintf("%x", sha512.Sum512(e.content)))}
	if e.kind.open {
		delete(image, "checksum")
	}
	for name, value := range e.image {
		image[name] = value
	}
	source := e.source
	if len(e.mirrors) > 0 && strings.HasPrefix(source, "download:") {
		source = strings.TrimSuffix(source, "}") + fmt.Sprintf(", mirrors: [%s]}", strings.Join(e.mirrors, ", "))
	}
	image["source"] = "{" + source + "}"
	return fmt.Sprintf("settings: {allowLoopbackSources: true, %s}\nnodes: {node1: {disks: {%s}, %s}, %s}\nimages: {parrot: {%s}, %s}\n",
		list(e.settings), strings.Join(disks, ", "), list(e.node), list(e.nodes), list(image), list(e.others))
}

// edit changes the configuration at random.
func (e *editRig) edit() {
	one := func(of ...string) string { return of[e.IntN(len(of))] }
	toggle := func(m map[string]string, key, value string) {
		if _, ok := m[key]; ok {
			delete(m, key)
		} else {
			m[key] = value
		}
	}
	switch e.IntN(9) {
	case 0, 1: // nodes that are not up
		n := 3 + e.IntN(4)
		toggle(e.nodes, fmt.Sprint("node", n), fmt.Sprintf("{address: 'http://127.0.0.1:%d', tags: [%s], disks: {a: {path: /a}, b: {path: /b}}}", n, one("x", "y")))
	case 2:
		i := e.IntN(len(e.spare))
		toggle(e.disks, fmt.Sprint("spare", i), e.spare[i])
	case 3:
		toggle(e.node, "tags", "["+one("x", "y")+"]")
		toggle(e.disk, "tags", "["+one("x", "y")+"]")
	case 4:
		toggle([]map[string]string{e.node, e.disk}[e.IntN(2)], "allowScheduling", "false")
	case 5:
		field := one("title: A parrot", "keepGenerations: 2", "suspend: {reason: work}", "followReplicas: false", "bandwidthLimit: 500Mi", "track: {url: 'https://example.com/', pattern: 'a-(?P<version>.*)'}")
		key, value, _ := strings.Cut(field, ": ")
		if key != "track" {
			toggle(e.image, key, value)
		}
		e.image["minNumberOfCopies"] = fmt.Sprint(max(1, e.kind.copies) + e.IntN(3))
	case 6:
		e.mirrors = append(e.mirrors, fmt.Sprintf("%q", fmt.Sprintf("https://example.com/%d%s", e.IntN(100), cmp.Or(map[bool]string{true: ".gz"}[e.kind.name == "packed"], ".raw"))))
		e.Shuffle(len(e.mirrors), func(i, k int) { e.mirrors[i], e.mirrors[k] = e.mirrors[k], e.mirrors[i] })
	case 7:
		toggle(e.others, one("macaw", "kea", "lory"), "{source: {upload: {}}, minNumberOfCopies: 2}")
	case 8:
		e.settings[one("concurrentReplenishPerNodeLimit", "cleanupWaitInterval", "recoveryWaitInterval")] = fmt.Sprint(e.IntN(4) * 60)
		toggle(e.settings, "scrubInterval", "720h")
	}
}

// apply applies the configuration and does a round.
func (e *editRig) apply(text string) {
	e.t.Helper()
	result := e.loader.Load(e.t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(text)}}})
	if len(result.Errors) > 0 {
		e.t.Fatalf("%v in\n%s", result.Errors, text)
	}
	now := time.Now()
	_, err := e.loop.Apply(e.t.Context(), config.Reading{Began: now, Ended: now, Result: &result})
	must(e.t, err)
	e.loop.Step(e.t.Context())
	if got := e.loop.View().Desired.Digest; got != result.Digest {
		e.t.Fatalf("the configuration %s is in force, want %s", got, result.Digest)
	}
}

// until does rounds until a condition is true.
func (e *editRig) until(what string, is func() bool) {
	e.t.Helper()
	for over := time.Now().Add(3 * deadline); !is(); e.loop.Step(e.t.Context()) {
		if time.Now().After(over) {
			e.t.Fatalf("not within %v: %s; %+v\n%s", 3*deadline, what, e.loop.View().Plan.Actions, &e.log)
		}
		select {
		case <-e.loop.reconciler.jobs.reports.ready:
		case <-e.loop.reconciler.local.Changed():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (e *editRig) run(edits int) {
	base := e.config()
	e.apply(base)
	var key ident.CopyRef
	runs := func() bool {
		for ref, run := range e.loop.reconciler.jobs.running {
			if run.order.Action.Op == e.kind.op && ref.ID.Name == "parrot" && run.stopped == "" {
				key = ref
				return true
			}
		}
		return false
	}
	if e.kind.op == model.Upload {
		e.loop.RequestUpload("parrot", ident.Digest{}, func(_ ident.CopyRef, err error) { must(e.t, err) })
		e.loop.Step(e.t.Context())
	}
	e.until("the job runs", runs)
	id := e.loop.reconciler.jobs.running[key]
	for n := range edits {
		e.edit()
		e.apply(e.config())
		if now := e.loop.reconciler.jobs.running[key]; now != id || id.stopped != "" || len(e.loop.View().Plan.Ends[key]) > 0 {
			e.t.Fatalf("after edit %d the job of %s does not run any more (%s):\n%s\n%s", n, key, e.loop.View().Plan.Ends[key], e.config(), &e.log)
		}
		select {
		case e.send <- struct{}{}:
		default:
		}
	}
	e.apply(base)
	if e.kind.op != model.Upload {
		close(e.send)
		if e.kind.op != model.Download {
			close(e.jobs.release)
		}
		e.until("the copy is ready", func() bool {
			_, ready := e.loop.View().Observed.Disks[key.Disk].Ready(key.ID)
			return ready
		})
	}
	e.jobs.mu.Lock()
	defer e.jobs.mu.Unlock()
	if n := e.jobs.starts[key]; n != 1 || e.kind.op == model.Download && e.requests.Load() != 1 {
		e.t.Errorf("%s began %d times, the upstream had %d requests:\n%s", key, n, e.requests.Load(), &e.log)
	}
}
