package job_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// damages change a packed file.
var damages = map[string]func([]byte) []byte{
	"bit in the middle":    func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b },
	"bit at the end":       func(b []byte) []byte { b[len(b)-2] ^= 0x10; return b },
	"last 3 bytes missing": func(b []byte) []byte { return b[:len(b)-3] },
	"half":                 func(b []byte) []byte { return b[:len(b)/2] },
	"trailing bytes":       func(b []byte) []byte { return append(b, strings.Repeat("metadata of the build", 20)...) },
	"trailing zeros":       func(b []byte) []byte { return append(b, make([]byte, 512)...) },
	"empty":                func([]byte) []byte { return nil },
	"a web page":           func([]byte) []byte { return []byte("<!DOCTYPE html><html>login</html>") },
	"another image":        func([]byte) []byte { return fetchtest.Random(9, 1<<20) },
}

// A mirror has the right file, or there is none: a damaged packed file, wherever its damage is found, is replaced by that of
// the mirror, or it is tried again later. No damage leads to other bytes, and the message names the address.
func TestDamagedPackedFiles(t *testing.T) {
	image := append(fetchtest.Random(1, 300<<10), make([]byte, 1<<20)...)
	packers := map[string]string{"gz": "gzip", "xz": "xz", "zst": "zstd", "bz2": "bzip2"}
	for ending, program := range packers {
		cmd := need.Command(t, program, "-c")
		cmd.Stdin = bytes.NewReader(image)
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for name, damage := range damages {
			for _, variant := range []int{0, 2, 3, 6, 7} {
				if race.Enabled && variant != 3 {
					continue
				}
				wrong := damage(bytes.Clone(packed))
				mirrored, declared, packedDeclared := variant&1 > 0, variant&2 > 0, variant&4 > 0
				t.Run(fmt.Sprintf("%s/%s/mirror=%t,checksum=%t,packedChecksum=%t", ending, name, mirrored, declared, packedDeclared), func(t *testing.T) {
					t.Parallel()
					server := fetchtest.Start(t)
					d := &schema.Download{URL: server.Serve("/bad/image.raw."+ending, fetchtest.Bytes(wrong))}
					if mirrored {
						d.Mirrors = []string{server.Serve("/good/image.raw."+ending, fetchtest.Bytes(packed))}
					}
					var checksum ident.Digest
					if declared {
						checksum = sum512(t, image)
					}
					if packedDeclared {
						d.PackedChecksum = sum512(t, packed)
					}
					j := newDownload(t, d, checksum)
					err := j.Run(t.Context())
					if err == nil {
						c := j.Disk.Stat(j.Image.ID)
						if c.State != model.Ready || c.SHA512 != sum512(t, image) {
							t.Errorf("got %s with %s", c.State, c.SHA512)
						}
						return
					}
					failure := job.NextFailure(model.Failure{}, j.Action, err, time.Unix(1e9, 0), 0)
					if mirrored || failure.RetryAt.IsZero() {
						t.Errorf("got %v, next attempt %v", err, failure.RetryAt)
					}
					if name == "trailing zeros" && !packedDeclared {
						t.Errorf("zeros are not accepted: %v", err)
					}
					if !strings.Contains(failure.Message, d.URL) {
						t.Errorf("the message does not have the address: %s", failure.Message)
					}
				})
			}
		}
	}
}

// newDownload returns a job that downloads an image to a new disk.
func newDownload(t *testing.T, d *schema.Download, checksum ident.Digest) job.Job {
	folder := t.TempDir()
	if _, err := disk.Init(folder); err != nil {
		t.Fatal(err)
	}
	id := ident.ID{Name: "parrot", UUID: "6846a0b2"}
	j := job.Job{
		Order: job.Order{Action: plan.Action{Op: model.Download, Image: id.Name, UUID: id.UUID}, Progress: &fetch.Progress{}},
		Disk:  open(t, folder), Client: &fetch.Client{AllowLoopback: true},
	}
	j.Image.ID, j.Image.Checksum, j.Image.Source.Download = id, checksum, d
	return j
}

// A file that cannot be the image is wrong bytes if a checksum is declared, whatever else is wrong with it: the mirror is
// used, or a later attempt. Without a checksum an empty answer is like a missing file.
func TestAnswersThatCannotBeTheImage(t *testing.T) {
	image := fetchtest.Random(1, 1<<20)
	vmdk := append([]byte("KDMV"), fetchtest.Random(2, 1<<20-4)...)
	for name, wrong := range map[string][]byte{
		"empty": nil, "short": image[:1000], "odd": image[:len(image)-1], "half": image[:len(image)/2], "VMDK": vmdk, "web page": []byte("<html>"),
		"other bytes": fetchtest.Random(3, len(image)),
	} {
		for _, declared := range []bool{true, false} {
			for _, mirrored := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/checksum=%t,mirror=%t", name, declared, mirrored), func(t *testing.T) {
					t.Parallel()
					server := fetchtest.Start(t)
					d := &schema.Download{URL: server.Serve("/bad.raw", fetchtest.Bytes(wrong))}
					if mirrored {
						d.Mirrors = []string{server.Serve("/good.raw", fetchtest.Bytes(image))}
					}
					var checksum ident.Digest
					if declared {
						checksum = sum512(t, image)
					}
					j := newDownload(t, d, checksum)
					err := j.Run(t.Context())
					var failure model.Failure
					if err != nil {
						failure = job.NextFailure(failure, j.Action, err, time.Unix(1e9, 0), 0)
					}
					wait := failure.RetryAt.Sub(time.Unix(1e9, 0))
					switch accepted := !declared && (name == "half" || name == "other bytes"); {
					case accepted || mirrored:
						if err != nil {
							t.Errorf("got %v", err)
						}
						if c := j.Disk.Stat(j.Image.ID); !accepted && c.SHA512 != sum512(t, image) {
							t.Errorf("got %s, %s", c.State, c.SHA512)
						}
					case err == nil || !strings.Contains(failure.Message, d.URL):
						t.Errorf("got %v", err)
					case name == "empty" && !declared:
						if failure.Final || wait > 5*time.Minute {
							t.Errorf("got %+v, after %v", failure, wait)
						}
					case wait != time.Hour:
						t.Errorf("got %+v, after %v, want an hour", failure, wait)
					}
				})
			}
		}
	}
}
