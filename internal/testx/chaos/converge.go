package chaos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lukechampine.com/blake3"
)

// convergence is the part of a run after all faults are healed.
type convergence struct{ *cluster }

// convergeTime is how long the cluster may take after the last fault: a node that was paused or
// isolated is noticed within 40 s, and the intervals follow. The rest is for a busy machine.
const convergeTime = 3 * time.Minute

// waitConverged waits until all nodes have converged, and reports a violation if they do not. A person
// helps after ten seconds, as the operator's guide says: with an upload where only people have the
// image, a retry where an attempt failed, and a verification where bits rotted.
func (c convergence) waitConverged(ctx context.Context) bool {
	start, helped, stable := time.Now(), time.Time{}, 0
	for ctx.Err() == nil {
		unfinished := c.unfinished()
		if len(unfinished) == 0 {
			stable++
		} else {
			stable = 0
		}
		switch waited := time.Since(start); {
		case stable == 3:
			c.note("converged after %.1fs", waited.Seconds())
			c.checkManifests()
			return true
		case waited > convergeTime:
			c.violation("converge"+start.String(), "the nodes have not converged within %v:\n\t%s", convergeTime, strings.Join(unfinished, "\n\t"))
			return false
		case stable == 0 && time.Since(helped) > 10*time.Second:
			if waited > 20*time.Second {
				c.note("after %.0fs, %d things are unfinished, such as: %s", waited.Seconds(), len(unfinished), unfinished[0])
			}
			c.help(waited)
			helped = time.Now()
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return false
}

// help does what a person does after faults. In the first seconds it only uploads and verifies.
func (c convergence) help(waited time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.observer.damagedCopies() {
		c.command(commandTime, k.disk.node, c.told("verification of "+k.String()), "backing-image", "verify", k.generation.image.name)
	}
	c.removeTorn()
	for _, d := range c.truth.sorted() {
		g := d.generation
		copies := len(c.observer.counted(c.observer.copies, g))
		if g.image.upload && copies == 0 {
			for _, n := range c.nodes {
				c.uploadTo(n, g, commandTime, func(err error) {
					c.note("    upload of %s to %s: %v", g, n.name, err)
				})
			}
		}
		if waited < 10*time.Second || copies >= c.wanted(d) {
			continue
		}
		for _, n := range c.nodes {
			c.command(commandTime, n, func(_ string, err error) {
				if err == nil {
					c.note("    retry of %s on %s", g, n.name)
				}
			}, "backing-image", "retry", g.image.name)
		}
	}
}

// removeTorn removes the folders whose record the suite tore while no node declared the generation any more:
// without a record the program does not own them, and has to keep them.
func (c convergence) removeTorn() {
	for key := range c.observer.torn {
		delete(c.observer.torn, key)
		if g := c.ids()[key.folder]; c.truth.declares(g) || key.life != key.disk.life {
			continue
		}
		if err := os.RemoveAll(key.disk.folder(key.folder)); err != nil {
			c.t.Error(err)
		}
		c.observer.forgetCopy(key)
		c.note("    %s has no record, and is removed by hand", key)
	}
}

// wanted returns how many copies an image has after all faults.
func (c convergence) wanted(d declaration) int {
	if d.copies == 0 {
		return len(c.disks())
	}
	return d.copies
}

// unfinished returns what is missing until the cluster has converged.
func (c convergence) unfinished() []string {
	var l []string
	digests := map[string]bool{}
	for _, n := range c.nodes {
		s, err := c.client.status(n)
		if err != nil {
			l = append(l, fmt.Sprintf("%s: %v", n.name, err))
			continue
		}
		digests[s.Config.Digest] = true
		l = append(l, unfinishedIn(s)...)
		c.mu.Lock()
		for _, d := range c.truth.sorted() {
			i := slices.IndexFunc(s.Images, func(i imageStatus) bool { return i.Name == d.generation.image.name && i.UUID == d.generation.uuid })
			if i < 0 || !s.Images[i].Declared {
				l = append(l, fmt.Sprintf("%s does not declare %s", n.name, d.generation))
			} else if got := s.Images[i]; got.Ready != got.Desired || got.Desired != c.wanted(d) {
				l = append(l, fmt.Sprintf("%s: %s: %d ready of %d, want %d: %s", n.name, d.generation, got.Ready, got.Desired, c.wanted(d), got.Message))
			}
		}
		c.mu.Unlock()
	}
	if len(digests) > 1 || digests[""] {
		l = append(l, fmt.Sprintf("the config digests are %v", digests))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observer.look()
	return append(l, c.unfinishedOnDisks()...)
}

// unfinishedIn returns what is missing according to the status of a node.
func unfinishedIn(s status) []string {
	var l []string
	if s.Config.Fault != "" || len(s.Config.Errors) > 0 || s.Config.Skew != "" {
		l = append(l, fmt.Sprintf("%s: config: %s %v %s", s.Node, s.Config.Fault, s.Config.Errors, s.Config.Skew))
	}
	for _, p := range s.Peers {
		if !p.Responds {
			l = append(l, fmt.Sprintf("%s: %s does not respond: %s", s.Node, p.Node, p.Problem))
		}
	}
	for _, d := range s.Disks {
		if d.Problem != "" || d.Disputed != "" || d.ReadOnly {
			l = append(l, fmt.Sprintf("%s: %s/%s: %s%s read-only: %v", s.Node, d.Node, d.Name, d.Problem, d.Disputed, d.ReadOnly))
		}
	}
	for _, a := range s.Plan.Actions {
		l = append(l, fmt.Sprintf("%s plans: %s %s-%s on %s/%s: %s (%s)", s.Node, a.Op, a.Image, a.UUID, a.Node, a.Disk, a.Reason.Text, a.Reason.Code))
	}
	return l
}

// unfinishedOnDisks compares the disks with what has to be on them: the copies, and nothing else.
func (c convergence) unfinishedOnDisks() []string {
	var l []string
	for _, d := range c.truth.sorted() {
		same := 0
		for _, k := range c.observer.counted(c.observer.copies, d.generation) {
			if k.same {
				same++
			}
		}
		for _, k := range c.observer.copies {
			if k.generation == d.generation {
				l = append(l, wrongDescription(k)...)
			}
		}
		if same != c.wanted(d) {
			l = append(l, fmt.Sprintf("the disks have %d true copies of %s, want %d", same, d.generation, c.wanted(d)))
		}
	}
	for _, d := range c.disks() {
		for _, pattern := range []string{"*", ".removing-*"} {
			folders, err := filepath.Glob(filepath.Join(d.store, "backing-images", pattern))
			if err != nil {
				panic(err) // the pattern is wrong
			}
			for _, folder := range folders {
				l = append(l, c.leftOn(d, filepath.Base(folder))...)
			}
		}
	}
	return l
}

// leftOn returns what does not belong into a folder of backing-images.
func (c convergence) leftOn(d *disk, entry string) []string {
	if slices.ContainsFunc(d.unmanaged, func(f unmanagedFile) bool {
		return strings.HasPrefix(f.path+"/", "backing-images/"+entry+"/")
	}) {
		return nil
	}
	g := c.ids()[entry]
	if g == nil || !c.truth.declares(g) {
		return []string{fmt.Sprintf("%s has %s, which is not declared", d.ref(), entry)}
	}
	files, err := os.ReadDir(d.folder(entry))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return []string{err.Error()}
	}
	var l []string
	for _, f := range files {
		switch f.Name() {
		case "backing", "backing.cfg", "backing.record", "backing.chunks":
		default:
			l = append(l, fmt.Sprintf("%s has %s/%s", d.ref(), entry, f.Name()))
		}
	}
	return l
}

// wrongDescription returns what is wrong in the backing.cfg of a copy, Longhorn's description of it.
func wrongDescription(k *copyOnDisk) []string {
	b, err := os.ReadFile(filepath.Join(k.disk.folder(k.folder), "backing.cfg"))
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", k, err)}
	}
	var cfg struct {
		UUID, CurrentChecksum, ExpectedChecksum string
		Size                                    int64
	}
	if err := json.Unmarshal(b, &cfg); err != nil {
		return []string{fmt.Sprintf("backing.cfg of %s: %v", k, err)}
	}
	g := k.generation
	if cfg.UUID != g.uuid || cfg.Size != g.size || cfg.CurrentChecksum != g.sha512 || g.image.checksum && cfg.ExpectedChecksum != g.sha512 {
		return []string{fmt.Sprintf("backing.cfg of %s is %s, want uuid %s, size %d and checksum %s", k, b, g.uuid, g.size, g.sha512)}
	}
	return nil
}

// checkManifests checks the chunk manifest of each copy against the bytes of its generation: peers trust it
// when they fetch and repair chunks.
func (c convergence) checkManifests() {
	c.mu.Lock()
	var copies []*copyOnDisk
	for _, k := range c.observer.copies {
		copies = append(copies, k)
	}
	c.mu.Unlock()
	for _, k := range copies {
		content, err := os.ReadFile(k.generation.file)
		if err != nil {
			c.t.Error(err)
			continue
		}
		withSHA256, withBLAKE3 := []byte(nil), []byte("BIMCHUNK\x00\x00\x00\x02\x00\x10\x00\x00")
		for chunk := range slices.Chunk(content, mib) {
			one, other := sha256.Sum256(chunk), blake3.Sum256(chunk)
			withSHA256, withBLAKE3 = append(withSHA256, one[:]...), append(withBLAKE3, other[:]...)
		}
		url := fmt.Sprintf("%s/v1/images/%s/%s/manifest?disk=%s", k.disk.node.url(), k.generation.image.name, k.generation.uuid, k.disk.name)
		got, err := c.client.get(url)
		if err != nil { // on a busy machine, a connection may reach a limit of the daemon
			got, err = c.client.get(url)
		}
		if err != nil {
			c.violation("manifest "+k.String(), "the chunk manifest of %s: %v", k, err)
		} else if !bytes.Equal(got, withSHA256) && !bytes.Equal(got, withBLAKE3) {
			c.violation("manifest "+k.String(), "the chunk manifest of %s has other hashes than its bytes: %d bytes, want %d or %d", k, len(got), len(withSHA256), len(withBLAKE3))
		}
	}
}
