package reconcile

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// way is how parrot gets onto a disk.
type way struct {
	name string
	// before is what is declared until the disk has all that the way needs.
	before func(w *ways) string
	source func(w *ways) string
	// chick is an image that is made of parrot. Parrot has other bytes than the others
	// then, and shows by chick that they are the right ones.
	chick string
	// run is one run of the program where that needs more than to converge.
	run func(p *trip) string
	// every is how many operations there are to one that it is broken off at; 0: as many
	// as there are ways that cost little. These have most operations in common: together
	// they come to all.
	every int
}

// everyWay is a way for each source.
var everyWay = []way{
	{name: "download", source: func(w *ways) string { return fmt.Sprintf("download: {url: %q}", "file://"+w.file) }},
	{name: "restore", source: func(w *ways) string {
		return fmt.Sprintf("restore: {backupURL: %q}", "vfs://"+w.store+"?backingImage=parrot")
	}},
	{name: "export", source: func(w *ways) string { return fmt.Sprintf("exportFromVolume: {path: %q}", w.file) }},
	{name: "clone", before: egg, source: func(*ways) string { return "clone: {backingImage: egg}" }},
	{
		name: "encrypt and decrypt", every: 20,
		before: egg,
		source: func(*ways) string { return "clone: {backingImage: egg, encryption: encrypt, secret: vault}" },
		chick:  "clone: {backingImage: parrot, encryption: decrypt, secret: vault}",
	},
	{name: "restore over S3", every: 7, source: func(w *ways) string {
		return fmt.Sprintf("restore: {backupURL: %q, credentials: store}", bucket+"?backingImage=parrot")
	}},
	{name: "upload", source: func(*ways) string { return "upload: {}" }, run: (*trip).upload, every: 9},
}

func egg(w *ways) string {
	return fmt.Sprintf("egg: {source: {download: {url: %q}}}", "file://"+w.file)
}

// sampled are all ways, and the one with the most goroutines with the race detector.
func sampled() []way {
	if race.Enabled {
		return everyWay[len(everyWay)-1:]
	}
	return everyWay
}

func (one way) stride() int {
	stride := cmp.Or(one.every, 5)
	if race.Enabled {
		stride *= 48
	}
	return stride
}

const bucket = "s3://images@us-east-1/deep"

// ways are the sources of one image, and volumes that it is brought to.
type ways struct {
	t       *testing.T
	f       *faultfs.FS
	content []byte
	from    string // the folder of all sources
	file    string
	store   string
	secrets string
	config  string // the directory that the way under test is declared in
}

// newWays makes sources of an image with so many chunks, one of them a hole, and a bit.
func newWays(t *testing.T, chunks int) *ways {
	content := fetchtest.Random(1, chunks*disk.ChunkSize+512)
	clear(content[disk.ChunkSize : 2*disk.ChunkSize])
	from := t.TempDir()
	w := &ways{
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

func (w *ways) client() fetch.Client { return fetch.Client{AllowAnyFile: true, SecretsDir: w.secrets} }

// backUp makes the backups that are restored.
func (w *ways) backUp() {
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
func (w *ways) declare(one way) (before, after schema.Result) {
	const settings = "settings: {allowLoopbackSources: true}\nimages: {"
	images := "parrot: {source: {" + one.source(w) + "}}"
	if one.chick != "" {
		images += ", chick: {source: {" + one.chick + "}}"
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
func (p *trip) upload() string {
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
	case <-p.died:
		return "killed"
	}
}

// sealed is how much longer an encrypted image is.
const sealed = clone.HeaderSize
