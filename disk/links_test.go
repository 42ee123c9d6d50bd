package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// callAll calls every method that reads or writes files of id, and returns the names of the methods
// that succeeded.
func callAll(d *Disk, id ident.ID) (succeeded []string) {
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"open", func() error { r, err := d.Open(id); return closed(r, err) }},
		{"verify", func() error { _, err := d.Verify(context.Background(), id, Expected{}, func(int64) {}); return err }},
		{"write cfg", func() error { return d.WriteCfg(id, ident.Digest{}) }},
		{"update", func() error { return d.Update(id, func(r *Record) { r.InUseRecorded = true }) }},
		{"part", func() error {
			p, err := d.OpenPart(context.Background(), id, PartOptions{})
			if err != nil {
				return err
			}
			defer p.Close()
			image := sparseImage(ChunkSize + 512)
			if err := p.Begin(PartSource{ID: "x", Size: int64(len(image))}); err != nil {
				return err
			}
			if _, err := p.ReadFrom(bytes.NewReader(image)); err != nil {
				return err
			}
			_, err = p.Commit(ident.Digest{})
			return err
		}},
		{"remove", func() error { return d.Remove(id, Mark{}) }},
	} {
		if call.do() == nil {
			succeeded = append(succeeded, call.name)
		}
	}
	return succeeded
}

// closed closes c if err is nil.
func closed[C io.Closer](c C, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// TestInvalidIDsReachNoFiles checks that ids that ParseID rejects give access to no file.
func TestInvalidIDsReachNoFiles(t *testing.T) {
	d := newDisk(t)
	replica(t, d, "vol-12345678", "")
	if err := os.WriteFile(filepath.Join(d.Path(), replicaFolder, "vol-12345678", imageFile), []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := tree(t, filepath.Dir(d.Path()))
	for _, id := range []ident.ID{
		{Name: "a/../../replicas/vol", UUID: "12345678"},
		{Name: "../replicas/vol", UUID: "12345678"},
		{Name: "../../../../../../etc/x", UUID: "12345678"},
		{Name: "..", UUID: ""},
		{Name: "", UUID: ""},
		{Name: "vol", UUID: "12345678/../../replicas"},
		{Name: ".removing-x", UUID: "12345678"},
		{Name: "UP", UUID: "12345678"},
	} {
		if succeeded := callAll(d, id); len(succeeded) > 0 {
			t.Errorf("%q: %q succeeded", id, succeeded)
		}
		if c := d.Stat(id); c.State == model.Ready || c.Owned || c.Size > 0 {
			t.Errorf("%q: %+v", id, c)
		}
	}
	if after := tree(t, filepath.Dir(d.Path())); !slices.Equal(after, before) {
		t.Errorf("the files are %q, want %q", after, before)
	}
}

// TestLinksAreNotFollowed checks that links in place of the program's folders and files are not
// followed: their targets, on the disk or outside, are not read, changed or deleted.
func TestLinksAreNotFollowed(t *testing.T) {
	outside := t.TempDir()
	folder := imagesFolder + "/" + testID.String()
	for name, plant := range map[string]func(at func(string) string) error{
		"folder to another image": func(at func(string) string) error {
			return os.Symlink("willow-00000224", at(folder))
		},
		"folder to a replica": func(at func(string) string) error {
			return os.Symlink("../replicas/vol-12345678", at(folder))
		},
		"folder to outside": func(at func(string) string) error { return os.Symlink(outside, at(folder)) },
		"images to within": func(at func(string) string) error {
			return errors.Join(os.Rename(at(imagesFolder), at("elsewhere")), os.Symlink("elsewhere", at(imagesFolder)))
		},
		"images to outside": func(at func(string) string) error {
			return errors.Join(os.RemoveAll(at(imagesFolder)), os.Symlink(outside, at(imagesFolder)))
		},
		"image to another image": func(at func(string) string) error {
			return errors.Join(os.Mkdir(at(folder), 0o755), os.Symlink("../willow-00000224/backing", at(folder+"/backing")))
		},
		"image to a file outside": func(at func(string) string) error {
			return errors.Join(os.Mkdir(at(folder), 0o755), os.Symlink("/etc/passwd", at(folder+"/backing")))
		},
		"image is a pipe": func(at func(string) string) error {
			return errors.Join(os.Mkdir(at(folder), 0o755), unix.Mkfifo(at(folder+"/backing"), 0o644))
		},
		"image is a folder": func(at func(string) string) error { return os.MkdirAll(at(folder+"/backing/x"), 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			replica(t, d, "vol-12345678", "")
			other, err := d.OpenPart(context.Background(), ident.ID{Name: "willow", UUID: "00000224"}, PartOptions{})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, other, sparseImage(ChunkSize))
			if _, err := other.Commit(ident.Digest{}); err != nil {
				t.Fatal(err)
			}
			if err := plant(func(name string) string { return filepath.Join(d.Path(), name) }); err != nil {
				t.Fatal(err)
			}
			before := tree(t, d.Path())
			succeeded := callAll(d, testID)
			if len(succeeded) > 0 {
				t.Errorf("%q succeeded", succeeded)
			}
			after := slices.DeleteFunc(tree(t, d.Path()), func(line string) bool { // files that we may create
				return strings.Contains(line, folder+"/backing.")
			})
			if !slices.Equal(after, before) {
				t.Errorf("left\n%s\nwant\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
			if out := tree(t, outside); len(out) != 1 {
				t.Errorf("outside is %q", out)
			}
		})
	}
}

// TestTemporaryFileIsNotWrittenThroughLink checks that links in place of the program's temporary
// files are not followed.
func TestTemporaryFileIsNotWrittenThroughLink(t *testing.T) {
	d := newDisk(t)
	replica(t, d, "vol-12345678", "")
	readyImage(t, d, sparseImage(ChunkSize))
	meta := filepath.Join(d.Path(), replicaFolder, "vol-12345678", "volume.meta")
	before, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{recordFile, cfgFile} {
		if err := os.Symlink("../../replicas/vol-12345678/volume.meta", imagePath(d, name+".tmp")); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Update(testID, func(r *Record) { r.InUseRecorded = true }); err != nil {
		t.Errorf("update: %v", err)
	}
	if err := d.WriteCfg(testID, ident.Digest{}); err != nil {
		t.Errorf("write cfg: %v", err)
	}
	if after, err := os.ReadFile(meta); err != nil || !bytes.Equal(after, before) {
		t.Errorf("volume.meta is %q, error %v", after, err)
	}
	if c := d.Stat(testID); c.State != model.Ready || !c.InUseRecorded || !c.HasCfg {
		t.Errorf("copy is %+v", c)
	}
}

// TestRecordAndCfgMustBeRegularFiles checks that a link in place of a record or backing.cfg is not
// followed, and that a pipe in its place does not block.
func TestRecordAndCfgMustBeRegularFiles(t *testing.T) {
	for _, name := range []string{recordFile, cfgFile} {
		d := newDisk(t)
		readyImage(t, d, sparseImage(ChunkSize))
		os.Rename(imagePath(d, name), imagePath(d, "moved"))
		if err := os.Symlink("moved", imagePath(d, name)); err != nil {
			t.Fatal(err)
		}
		if c := d.Stat(testID); c.Owned == (name == recordFile) || c.HasCfg {
			t.Errorf("%s is a link: %+v", name, c)
		}
		os.Remove(imagePath(d, name))
		if err := unix.Mkfifo(imagePath(d, name), 0o644); err != nil {
			t.Fatal(err)
		}
		if c := d.Stat(testID); c.Owned == (name == recordFile) || c.HasCfg {
			t.Errorf("%s is a pipe: %+v", name, c)
		}
	}
}

// TestDanglingReplicasLinkCountsAsUse checks that all images count as in use if the replicas folder
// is a dangling symlink, for example to a file system that is not mounted.
func TestDanglingReplicasLinkCountsAsUse(t *testing.T) {
	for _, target := range []string{"elsewhere/replicas", "/elsewhere/replicas"} {
		d := newDisk(t)
		if err := os.Symlink(target, filepath.Join(d.Path(), replicaFolder)); err != nil {
			t.Fatal(err)
		}
		if _, inUse := d.Users().mayBeInUse(testID); !inUse {
			t.Errorf("replicas -> %s: no image counts as in use", target)
		}
	}
}

// TestUnreadableVolumeMetaCountsAsUse checks that every image counts as in use if the volume.meta of
// a replica cannot be read.
func TestUnreadableVolumeMetaCountsAsUse(t *testing.T) {
	for name, plant := range map[string]func(at string) error{
		"nothing":                   func(string) error { return nil },
		"a pipe":                    func(at string) error { return unix.Mkfifo(at, 0o644) },
		"a folder":                  func(at string) error { return os.Mkdir(at, 0o755) },
		"a link to outside":         func(at string) error { return os.Symlink("/etc/passwd", at) },
		"a link to another replica": func(at string) error { return os.Symlink("../vol-12345678/volume.meta", at) },
		"a dangling link":           func(at string) error { return os.Symlink("nowhere", at) },
		"only a temporary file":     func(at string) error { return os.WriteFile(at+".tmp", []byte("{}"), 0o644) },
		"larger than maxSmallFile":  func(at string) error { return os.WriteFile(at, make([]byte, maxSmallFile+1), 0o644) },
		"a replica that is a file": func(at string) error {
			return errors.Join(os.Remove(filepath.Dir(at)), os.WriteFile(filepath.Dir(at), nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			replica(t, d, "vol-12345678", "")
			readyImage(t, d, sparseImage(ChunkSize))
			folder := filepath.Join(d.Path(), replicaFolder, "odd-00000001")
			if err := errors.Join(os.Mkdir(folder, 0o755), plant(filepath.Join(folder, "volume.meta"))); err != nil {
				t.Fatal(err)
			}
			if err := d.Remove(testID, Mark{}); !isA[*InUseError](err) {
				t.Errorf("error is %v, want an InUseError", err)
			}
			if c := d.Stat(testID); c.State != model.Ready {
				t.Errorf("copy is %+v", c)
			}
		})
	}
}

// TestUseThroughLinkIsDetected checks that an image is in use if a stopped replica names it by a
// link, either to the folder of the image or to its file.
func TestUseThroughLinkIsDetected(t *testing.T) {
	for name, link := range map[string]func(alias string) error{
		"folder": func(alias string) error { return os.Symlink(testID.String(), alias) },
		"file": func(alias string) error {
			return errors.Join(os.Mkdir(alias, 0o755), os.Symlink("../"+testID.String()+"/"+imageFile, filepath.Join(alias, imageFile)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, sparseImage(ChunkSize))
			if err := link(filepath.Join(d.Path(), imagesFolder, "willow-00000224")); err != nil {
				t.Fatal(err)
			}
			replica(t, d, "vol-12345678", "/host"+d.Path()+"/backing-images/willow-00000224/backing")
			if err := d.Remove(testID, Mark{}); !isA[*InUseError](err) {
				t.Errorf("error is %v, want an InUseError", err)
			}
			if c := d.Stat(testID); c.State != model.Ready {
				t.Errorf("copy is %+v", c)
			}
		})
	}
}

// TestHardLinksAreNotWritten checks that a file whose second name is a file of a copy is not changed by
// a transfer, a verification or a repair.
func TestHardLinksAreNotWritten(t *testing.T) {
	for _, name := range []string{partFile, partChunksFile, newManifestFile, recordFile + ".tmp", cfgFile + ".tmp"} {
		for _, recorded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s recorded=%v", name, recorded), func(t *testing.T) {
				d := newDisk(t)
				victim := filepath.Join(d.Path(), "victim")
				if err := os.WriteFile(victim, []byte("precious"), 0o644); err != nil {
					t.Fatal(err)
				}
				image := sparseImage(2 * ChunkSize)
				if recorded {
					p := openPart(t, d, PartOptions{})
					if err := p.Begin(PartSource{ID: "x", Size: int64(len(image))}); err != nil {
						t.Fatal(err)
					}
					if err := p.Close(); err != nil {
						t.Fatal(err)
					}
				} else if err := os.MkdirAll(filepath.Dir(imagePath(d, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				_ = os.Remove(imagePath(d, name))
				if err := os.Link(victim, imagePath(d, name)); err != nil {
					t.Fatal(err)
				}
				readyImage(t, d, image)
				if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
					t.Errorf("the copy is %+v, error %v", c, err)
				}
				if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
					t.Errorf("the other file is %.20q, error %v", data, err)
				}
			})
		}
	}
}

// TestLinkedImageIsReported checks that a ready copy with a second name stays ready with a warning, and
// that a repair does not write to it.
func TestLinkedImageIsReported(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(2*ChunkSize))
	other := filepath.Join(d.Path(), "other")
	if err := os.Link(imagePath(d, imageFile), other); err != nil {
		t.Fatal(err)
	}
	c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}) // the link changes the ctime
	if err != nil || c.State != model.Ready || !strings.Contains(c.Message, "2 names") {
		t.Errorf("the copy is %+v, error %v", c, err)
	}
	if _, err := openRegular(d.root, filePath(testID, imageFile), os.O_RDWR); err == nil || !strings.Contains(err.Error(), "2 names") {
		t.Errorf("opened for writing: error is %v", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready || c.Message != "" {
		t.Errorf("without the second name the copy is %+v, error %v", c, err)
	}
}
