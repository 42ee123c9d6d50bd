package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// fleetFiles are the inputs of a plan in CI: the configuration of a branch (head) and of its base,
// and the saved status of one node of the cluster.
type fleetFiles struct{ base, head, status string }

// newFleet writes the files of a cluster of nodes with two disks each. Every copy that the base
// desires is ready: three of each image, or one on every SSD where spread is true. The head evicts
// a node, and of each fifty images removes one, adds one and replaces one.
func newFleet(t testing.TB, nodes, images int, spread func(int) bool) fleetFiles {
	t.Helper()
	dir := t.TempDir()
	f := fleetFiles{filepath.Join(dir, "base"), filepath.Join(dir, "head"), filepath.Join(dir, "status.json")}
	base, head := map[string]string{}, map[string]string{}
	for n := range nodes {
		name, more := fmt.Sprintf("node%03d", n), ""
		text := `nodes: {%s: {address: "http://10.0.%d.%d:8000", tags: [edge]%s, disks: {` +
			"system: {path: /var/lib/longhorn, storageReserved: 30Gi}, ssd: {path: /mnt/ssd, tags: [ssd], storageReserved: 10Gi}}}}\n"
		base["node.yaml"] += "---\n" + fmt.Sprintf(text, name, n/250, n%250+1, more)
		if n == nodes/2 {
			more = ", evictionRequested: true"
		}
		head["node.yaml"] += "---\n" + fmt.Sprintf(text, name, n/250, n%250+1, more)
	}
	image := func(name, version, copies string) string {
		return fmt.Sprintf("  %s: {source: {download: {url: \"https://images.example.com/%s-%s.raw\"}}, minNumberOfCopies: %s, diskSelector: [ssd]}\n", name, name, version, copies)
	}
	base["image.yaml"], head["image.yaml"] = "images:\n", "images:\n"
	for i := range images {
		name, copies, version := fmt.Sprintf("image%03d", i), "3", "1"
		if spread(i) {
			copies = "all"
		}
		base["image.yaml"] += image(name, "1", copies)
		switch i % 50 {
		case 7:
			continue
		case 13:
			version = "2"
		case 21:
			head["image.yaml"] += image("new-"+name, "1", copies)
		}
		head["image.yaml"] += image(name, version, copies)
	}
	for folder, files := range map[string]map[string]string{f.base: base, f.head: head} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	saveStatus(t, f)
	return f
}

// saveStatus saves the status of the first node, with all desired copies ready.
func saveStatus(t testing.TB, f fleetFiles) {
	t.Helper()
	result, err := loadConfig(t.Context(), os.Stderr, f.base)
	if err != nil || len(result.Errors) > 0 {
		t.Fatal(err, result.Errors)
	}
	d, err := plan.NewDesired(result.Loaded, "node000", nil)
	if err != nil {
		t.Fatal(err)
	}
	o := plan.Observed{Now: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}}
	for node, declared := range result.Config.Nodes {
		if node != d.Node {
			o.Peers[node] = model.Peer{Queried: true, ConfigDigest: result.Digest, LastResponse: o.Now}
		}
		for name, one := range declared.Disks {
			o.Disks[ident.DiskRef{Node: node, Disk: name}] = model.Disk{
				Path: one.Path, UUID: node + name, Space: model.Space{Total: 1 << 42, Free: 1 << 41}, Copies: map[ident.ID]model.Copy{},
			}
		}
	}
	for _, image := range (&status.View{Desired: d, Observed: o}).Status(nil).Images {
		id := ident.ID{Name: image.Name, UUID: image.UUID}
		sum, err := ident.ParseDigest(strings.Repeat(image.UUID, 16))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range image.Copies {
			o.Disks[ident.DiskRef{Node: c.Node, Disk: c.Disk}].Copies[id] = model.Copy{ID: id, State: model.Ready, Format: model.Raw, Size: 8 << 30, VirtualSize: 8 << 30, RealSize: 2 << 30, Owned: true, HasCfg: true,
				SHA512: sum, ManifestDigest: sum, VerifiedAt: o.Now.Add(-240 * time.Hour)}
		}
	}
	var text bytes.Buffer
	if err := report.WriteJSON(&text, (&status.View{Desired: d, Observed: o, Plan: plan.NewRound(d, o).Plan()}).Status(nil)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.status, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkFleet plans for 200 nodes and 500 images from a saved status. It runs the program, so
// that it includes loading the configuration and the status. The part "change" also separates the
// actions that the base has, too.
func BenchmarkFleet(b *testing.B) {
	f := newFleet(b, 200, 500, func(i int) bool { return i%25 == 0 })
	program := buildProgram(b)
	for name, more := range map[string][]string{"plan": {"--dry-run"}, "change": {"--diff", f.base}} {
		b.Run(name, func(b *testing.B) {
			var all []cost
			for b.Loop() {
				args := append([]string{"reconcile", "--config-dir", f.head, "--state", f.status, "-o", "markdown"}, more...)
				all = append(all, measure(b, exec.Command(program, args...)))
			}
			reportCost(b, median(all))
		})
	}
}

func reportCost(b *testing.B, c cost) {
	b.ReportMetric(0, "ns/op") // 0 hides ns/op, which would be the sum of all runs
	b.ReportMetric(c.wall.Seconds(), "s")
	b.ReportMetric(c.cpu.Seconds(), "cpu-s")
	b.ReportMetric(float64(c.rss)/(1<<20), "MiB-rss")
}

// BenchmarkLargeConfiguration runs validate for 10,000 images, in one file, in a file each and in ten packages of
// .cue files, and the plan of one of 1,000 nodes for 10,000 images.
func BenchmarkLargeConfiguration(b *testing.B) {
	const images, nodes = 10_000, 1000
	program := buildProgram(b)
	dir := b.TempDir()
	write := func(folder, name, text string) {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, folder, name), []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	var all, declared strings.Builder
	for i := range images {
		one := typicalImage(i)
		all.WriteString(one)
		write("file-each", fmt.Sprintf("%05d.yaml", i), "images:\n"+one)
	}
	for p := range 10 {
		text := "package p\nimages: {\n"
		for i := range images / 10 {
			text += typicalImageCUE(p*images/10 + i)
		}
		write(fmt.Sprintf("cue/%d", p), "images.cue", text+"}\n")
	}
	for n := range nodes {
		fmt.Fprintf(&declared, "  node%d: {address: \"http://10.0.%d.%d:8000\", tags: [edge], disks: {ssd: {path: %s, tags: [ssd], storageReserved: 10Gi}}}\n",
			n, n/250, n%250+1, filepath.Join(dir, "disk"))
	}
	write("one-file", "images.yaml", "images:\n"+all.String())
	write("fleet", "images.yaml", "images:\n"+all.String())
	write("fleet", "nodes.yaml", "nodes:\n"+declared.String())
	write("disk", "empty", "")
	if out, err := exec.Command(program, "disk", "init", filepath.Join(dir, "disk")).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"validate/one-file", []string{"validate", filepath.Join(dir, "one-file")}},
		{"validate/file-each", []string{"validate", filepath.Join(dir, "file-each")}},
		{"validate/cue", []string{"validate", filepath.Join(dir, "cue")}},
		{"plan", []string{"reconcile", "--config-dir", filepath.Join(dir, "fleet"), "--node", "node7", "--dry-run", "--offline"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var all []cost
			for b.Loop() {
				all = append(all, measure(b, exec.Command(program, c.args...)))
			}
			reportCost(b, median(all))
		})
	}
}

// typicalImage declares an image with the fields that most images have.
func typicalImage(i int) string {
	return fmt.Sprintf(`  image-%d:
    source:
      download:
        url: https://images.example.com/releases/%d/image-%d.qcow2
        mirrors:
          - https://mirror.example.com/releases/%d/image-%d.qcow2
        credentials: vendor
    checksum: %q
    format: qcow2
    minNumberOfCopies: 2
    nodeSelector: [edge]
    diskSelector:
      - ssd
`, i, i, i, i, i, strings.Repeat(fmt.Sprintf("%08x", i), 16))
}

// typicalImageCUE is typicalImage in CUE.
func typicalImageCUE(i int) string {
	return fmt.Sprintf(`"image-%d": {source: download: {url: "https://images.example.com/releases/%d/image-%d.qcow2",
mirrors: ["https://mirror.example.com/releases/%d/image-%d.qcow2"], credentials: "vendor"},
checksum: %q, format: "qcow2", minNumberOfCopies: 2, nodeSelector: ["edge"], diskSelector: ["ssd"]}
`, i, i, i, i, i, strings.Repeat(fmt.Sprintf("%08x", i), 16))
}

// The plan has very many changes. GitHub accepts comments of 65,536 characters.
func TestMarkdownOfALargePlanFitsAComment(t *testing.T) {
	if race.Enabled {
		t.Skip("a single goroutine, which takes 7 s with the race detector")
	}
	f := newFleet(t, 40, 200, func(int) bool { return true })
	out, _, err := try(t, "reconcile", "--config-dir", f.head, "--diff", f.base, "--state", f.status, "-o", "markdown")
	if err != nil {
		t.Fatal(err)
	}
	if len(out) > 65_536 || len(out) < 20_000 {
		t.Errorf("the comment has %d bytes", len(out))
	}
	lines := strings.SplitN(out, "\n", 4)
	for i, want := range []string{"### Loses all copies: image007, image057, image107", "**Plan: ", "Transfers, "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is %q", i+1, lines[i])
		}
	}
	if open, closed := strings.Count(out, "<details>"), strings.Count(out, "</details>"); open != closed || !strings.Contains(out, " more: `-o json` has all.") {
		t.Errorf("%d folded parts begin and %d end, or no table is shortened", open, closed)
	}
}
