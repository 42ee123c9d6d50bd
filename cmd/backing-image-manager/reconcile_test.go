package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// rig is a config directory, a disk, and an image file as the source.
type rig struct {
	t                   *testing.T
	config, disk, image string
}

func newRig(t *testing.T) rig {
	t.Helper()
	r := rig{t: t, config: t.TempDir(), disk: t.TempDir(), image: filepath.Join(t.TempDir(), "image.raw")}
	if _, err := disk.Init(r.disk); err != nil {
		t.Fatal(err)
	}
	r.put(r.image, strings.Repeat("0123456789abcde\n", 3<<16))
	t.Setenv("NODE_NAME", "node1")
	return r
}

func (r rig) put(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// declare replaces the configuration. SOURCE stands for a source that works, and IMAGE for its
// file.
func (r rig) declare(text string) {
	r.t.Helper()
	text = strings.ReplaceAll(text, "SOURCE", fmt.Sprintf(`source: {download: {url: "file://%s"}}`, r.image))
	text = strings.ReplaceAll(text, "IMAGE", r.image)
	r.put(filepath.Join(r.config, "config.yaml"), text)
}

// reconcile runs the command and returns its output and exit code.
func (r rig) reconcile(more ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	stdout, stderr, err := try(r.t, append([]string{"reconcile", "--config-dir", r.config, "--disk", r.disk}, more...)...)
	if err != nil {
		stderr += err.Error() + "\n"
	}
	return stdout, stderr, exitCode(err)
}

// statsBelow returns the mode, size, inode and times of every file and folder below folders.
func statsBelow(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			all[path] = fmt.Sprint(info.Mode(), info.Size(), st.Ino, st.Mtim, st.Ctim)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// A dry run must not change a time or an inode. The disk has a ready copy, a copy whose record is
// due for an update, a partial file, and an interrupted deletion that the start of a manager would
// undo.
func TestDryRunChangesNoFile(t *testing.T) {
	r := newRig(t)
	r.declare(`images: {parrot: {SOURCE}, desert: {SOURCE}}`)
	if out, errs, code := r.reconcile(); code != 0 {
		t.Fatal(out, errs)
	}
	images := filepath.Join(r.disk, "backing-images")
	for _, folder := range []string{"forest-00000001", ".removing-marsh-00000002"} {
		if err := os.Mkdir(filepath.Join(images, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		r.put(filepath.Join(images, folder, "backing.part"), "part")
	}
	r.declare(`images: {parrot: {SOURCE, checksum: "sha256:` + strings.Repeat("a", 64) + `"}, forest: {SOURCE, uuid: "00000001"}}`)
	before := statsBelow(t, r.disk, r.config)
	for _, format := range []string{"text", "json", "yaml", "markdown"} {
		out, errs, code := r.reconcile("--dry-run", "-o", format)
		if code != 0 || !strings.Contains(out, "parrot") || !strings.Contains(out, "desert") {
			t.Errorf("-o %s: exit code %d, output %s%s", format, code, out, errs)
		}
	}
	if after := statsBelow(t, r.disk, r.config); !maps.Equal(before, after) {
		t.Errorf("before:\n%v\nafter:\n%v", before, after)
	}
}

func TestExitCodes(t *testing.T) {
	const good, missing = `parrot: {SOURCE}`, `nest: {source: {download: {url: "file:///nowhere/at/all"}}}`
	for _, c := range []struct {
		name, config string
		args         string
		code         int
		output       string // a part of stdout or stderr
	}{
		{"success", `images: {` + good + `}`, "", 0, "Done. The disks match the configuration."},
		{"dry run with an action", `images: {` + good + `}`, "--dry-run", 0, "Plan: 1 to fetch, 0 to sync, 0 to clean up; an unknown amount to transfer."},
		{"dry run with an action, detailed", `images: {` + good + `}`, "--dry-run --detailed-exitcode", 2, "Plan: 1 to fetch"},
		{"dry run without an action, detailed", `images: {}`, "--dry-run --detailed-exitcode", 0, "No changes. The disks match the configuration."},
		{"fewer disks than copies", `images: {parrot: {SOURCE, minNumberOfCopies: 2}}`, "", 0, "waiting"},
		{"a source that fails", `images: {` + good + `, ` + missing + `}`, "", 1, "the disks do not match the configuration yet: 1 failed"},
		{"an upload that is still awaited", `images: {parrot: {source: {upload: {}}}}`, "", 1, "1 not ready"},
		{"dry run of the export of a file", `images: {parrot: {source: {exportFromVolume: {path: "IMAGE"}}}}`, "--dry-run", 0, "  export  parrot"},
		{"no replica", `images: {parrot: {source: {exportFromVolume: {volumeName: v}}}}`, "", 1, "1 blocked"},
		{"dry run with a blocked action, detailed", `images: {parrot: {source: {exportFromVolume: {volumeName: v}}}}`, "--dry-run --detailed-exitcode", 2, "1 blocked"},
		{"an invalid image", `images: {` + good + `, nest: {}}`, "", 1, "config.yaml:1:"},
		{"dry run with an invalid image", `images: {` + good + `, nest: {}}`, "--dry-run --detailed-exitcode", 1, "1 to fetch"},
		{"a file that cannot be parsed", `images: {`, "", 1, "No plan"},
		{"a file that cannot be parsed, as Markdown", `images: {`, "--dry-run -o markdown", 1, "**No plan"},
		{"a file that cannot be parsed, as JSON", `images: {`, "--dry-run -o json", 1, `"actions": []`},
		{"nothing declared", `# nothing`, "", 1, "no settings, nodes or images are declared"},
		{"an undeclared node", `nodes: {a1: {disks: {}}}`, "", 1, `node "node1" is not declared: the configuration has a1`},
		{"wrong checksum", `images: {parrot: {SOURCE, checksum: "sha256:` + strings.Repeat("a", 64) + `"}}`, "", 1, "configuration yet: 1 failed\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.declare(c.config)
			stdout, stderr, code := r.reconcile(strings.Fields(c.args)...)
			if code != c.code || !strings.Contains(stdout+stderr, c.output) {
				t.Errorf("exit code %d, want %d; output\n%s%s\nwant %q", code, c.code, stdout, stderr, c.output)
			}
		})
	}
}

// An invalid image stops its own actions and all deletions, and nothing else.
func TestInvalidImageStopsOnlyItselfAndDeletions(t *testing.T) {
	r := newRig(t)
	r.declare(`images: {old: {SOURCE}}`)
	if _, errs, code := r.reconcile(); code != 0 {
		t.Fatal(errs)
	}
	r.declare(`{settings: {cleanupWaitInterval: 0}, images: {parrot: {SOURCE}, nest: {}}}`)
	if _, errs, code := r.reconcile(); code != 1 {
		t.Errorf("exit code %d, %s", code, errs)
	}
	list, _, err := try(t, "backing-image", "list", "--disk", r.disk, "-o", "table")
	if err != nil || strings.Count(list, "ready") != 2 {
		t.Errorf("error %v; the disk has\n%s", err, list)
	}
}

func TestOfflineDeletesNothingIfNodesAreDeclared(t *testing.T) {
	r := newRig(t)
	nodes := fmt.Sprintf(`settings: {cleanupWaitInterval: 0}, nodes: {node1: {disks: {disk1: {path: %s}}}}`, r.disk)
	r.declare(`{` + nodes + `, images: {old: {SOURCE}}}`)
	if _, errs, code := r.reconcile(); code != 0 {
		t.Fatal(errs)
	}
	r.declare(`{` + nodes + `, images: {}}`)
	out, errs, code := r.reconcile("--offline", "--dry-run", "--detailed-exitcode")
	if code != 0 || !strings.Contains(out, "No changes now: 1 waiting.") {
		t.Errorf("dry run: exit code %d, output %s%s", code, out, errs)
	}
	for _, c := range []struct {
		args string
		kept int
	}{{"--offline", 1}, {"", 0}} {
		out, errs, code := r.reconcile(strings.Fields(c.args)...)
		folders, err := filepath.Glob(filepath.Join(r.disk, "backing-images", "old-*"))
		if code != 0 || err != nil || len(folders) != c.kept {
			t.Errorf("%q: exit code %d, the disk has %v, output %s%s", c.args, code, folders, out, errs)
		}
	}
}

func TestLockedDiskStopsARunButNotADryRun(t *testing.T) {
	r := newRig(t)
	r.declare(`images: {parrot: {SOURCE}}`)
	d, err := disk.Open(r.disk)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, errs, code := r.reconcile(); code != 1 || !strings.Contains(errs, "locked by another process") {
		t.Errorf("exit code %d, output %s", code, errs)
	}
	if out, errs, code := r.reconcile("--dry-run"); code != 0 || !strings.Contains(out, "Plan: 1 to fetch") {
		t.Errorf("dry run: exit code %d, output %s%s", code, out, errs)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := r.reconcile(); code != 0 {
		t.Errorf("after the lock was released: exit code %d, output %s", code, errs)
	}
}
