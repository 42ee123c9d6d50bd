package chaos

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// look reads the disks and checks what changed since the last look. The caller has the lock of the
// cluster.
func (o *observer) look() {
	o.looks++
	now := time.Now()
	defer func() {
		if took := time.Since(now); took > time.Second {
			o.note("slow: look took %v", took)
		}
	}()
	ids := o.ids()
	found := map[copyKey]*copyOnDisk{}
	unread := map[copyKey]bool{} // that could not be read now
	for _, d := range o.disks() {
		entries, err := os.ReadDir(filepath.Join(d.store, "backing-images"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			o.violation("read "+d.ref(), "%v", err)
		}
		for _, e := range entries {
			g := ids[copyFolder(e.Name())]
			if g == nil {
				continue
			}
			key := copyKey{d, d.life, g.id()}
			k, err := o.read(key, e.Name(), g)
			switch {
			case errors.Is(err, unix.EAGAIN): // the daemon has a lease, to delete it
				unread[key] = true
			case err == nil:
				found[key] = k
				delete(o.gone, key)
			}
		}
		for _, path := range d.touched() {
			o.violation("unmanaged "+d.store+path, "a file that the program does not own changed on %s: %s", d.ref(), path)
		}
	}
	for key, k := range o.copies {
		if unread[key] {
			found[key] = k
		}
	}
	o.checkBytes(found)
	o.checkUses(found, now)
	o.checkDeletions(found, now)
	o.copies = found
}

// evidenceOf returns the evidence of the file of a copy.
func evidenceOf(d *disk, entry string) (evidence, error) {
	info, err := os.Lstat(filepath.Join(d.folder(entry), "backing"))
	if err != nil {
		return evidence{}, err
	}
	return newEvidence(info), nil
}

func newEvidence(info os.FileInfo) evidence {
	s := info.Sys().(*syscall.Stat_t)
	return evidence{s.Ino, info.Size(), info.ModTime().UnixNano(), s.Ctim.Nano()}
}

// settleTime is longer than a tick of the clock of the file system: within a tick, a second change leaves the
// times of a file as they are.
const settleTime = 50 * time.Millisecond

// read returns the copy in a folder. It reads the bytes only if the file has changed. It never waits for a
// lease, and it has the file open for a moment only: an open file is in use.
func (o *observer) read(key copyKey, entry string, g *generation) (*copyOnDisk, error) {
	e, err := evidenceOf(key.disk, entry)
	if err != nil {
		return nil, err
	}
	before := o.copies[key]
	if before != nil && before.evidence == e && !before.unsettled {
		return before, nil
	}
	now := time.Now()
	f, err := os.OpenFile(filepath.Join(key.disk.folder(entry), "backing"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	k := &copyOnDisk{copyKey: key, generation: g, evidence: newEvidence(info), size: info.Size()}
	k.unsettled = now.Sub(time.Unix(0, k.evidence.ctime)) < settleTime
	k.same = [sha256.Size]byte(h.Sum(nil)) == g.digest
	if before != nil && before.evidence.inode == k.evidence.inode {
		k.rotten = before.rotten && !k.same
		k.garbled = before.garbled && !k.same
	}
	return k, nil
}

// checkBytes checks that each file with a final name has the bytes of its generation.
func (o *observer) checkBytes(found map[copyKey]*copyOnDisk) {
	for key, k := range found {
		if !k.same && !k.rotten {
			o.violation("bytes "+key.String(), "%s has other bytes than the generation: %d bytes in place of %d", k, k.size, k.generation.size)
		}
	}
}

// checkUses checks that copies in use are neither deleted nor replaced.
func (o *observer) checkUses(found map[copyKey]*copyOnDisk, now time.Time) {
	for name, u := range o.uses {
		if k := found[u.copy.copyKey]; k != nil && k.evidence.inode == u.copy.evidence.inode {
			continue
		}
		verb := "deleted"
		if found[u.copy.copyKey] != nil {
			verb = "replaced"
		}
		if !o.established(u, now) {
			o.excuse("used moments ago", "%s was %s %v after %s began to use it", u.copy, verb, now.Sub(u.since).Round(time.Millisecond), name)
			_ = o.endUse(name) // the copy is gone
			continue
		}
		o.violation("use "+name, "%s was %s while %s had used it for %v", u.copy, verb, name, now.Sub(u.since).Round(time.Second))
	}
}

// checkDeletions checks that the program deleted only what it may delete. The suite removes what it
// deletes itself from o.copies.
func (o *observer) checkDeletions(found map[copyKey]*copyOnDisk, now time.Time) {
	for key, k := range o.copies {
		if found[key] != nil {
			continue
		}
		o.gone[key] = now
		if !k.same {
			continue
		}
		g := k.generation
		left := len(o.counted(found, g))
		o.note("    deleted: %s, %d KiB; %d copies are left", k, k.size/kib, left)
		if required := o.required(g, now); left < required {
			if what := o.ownDamage(found, g, now); what != "" {
				o.excuse(what, "%s was deleted, with %d copies left of %d", k, left, required)
				continue
			}
			o.violation("count "+key.String()+now.String(), "%s was deleted, with %d copies left of %d that are declared", k, left, required)
		}
		since, named := o.named[g.image.name]
		if !named || now.Sub(since) < graceTime {
			continue
		}
		all := 0
		for _, other := range g.image.generations {
			all += len(o.counted(found, other))
		}
		if all == 0 {
			o.violation("last "+key.String()+now.String(), "%s was the last true copy of all generations of a declared image", k)
		}
	}
}

// sameMoments is longer than a deletion takes from the responses of the other nodes to its end.
const sameMoments = 5 * time.Second

// ownDamage returns what the suite did to copies of the generation that explains a low number, "" for
// nothing.
func (o *observer) ownDamage(found map[copyKey]*copyOnDisk, g *generation, now time.Time) string {
	if now.Sub(o.hurt[g]) < sameMoments {
		return "the suite damaged or lost another copy moments before"
	}
	for _, k := range o.counted(found, g) {
		if k.rotten || k.garbled {
			return "another copy was damaged by the suite"
		}
	}
	return ""
}

// readyTime is how long a node may say that a copy is ready after it has gone: a round, on a busy machine.
const readyTime = 10 * time.Second

// checkReady checks that the copies that a node says are ready on its disks are there.
func (o *observer) checkReady(n *node, s status) {
	for _, image := range s.Images {
		for _, c := range image.Copies {
			if c.Node != n.name || c.State != "ready" {
				continue
			}
			i := slices.IndexFunc(n.disks, func(d *disk) bool { return d.name == c.Disk })
			d := n.disks[i]
			key := copyKey{d, d.life, image.Name + "-" + image.UUID}
			if o.copies[key] != nil || !d.attached || time.Since(o.back[d]) < readyTime || n.upFor() < readyTime {
				continue
			}
			if gone, known := o.gone[key]; !known {
				o.gone[key] = time.Now()
			} else if s.Time.Sub(gone) > readyTime {
				o.violation("ready "+key.String(), "%s says that %s is ready, and it is not there", n.name, key)
			}
		}
	}
}

// checkLogs checks that no daemon panicked or found a data race.
func (o *observer) checkLogs() {
	for _, n := range o.nodes {
		b, err := os.ReadFile(n.log())
		if err != nil {
			o.violation("log "+n.name, "%v", err)
			continue
		}
		for _, sign := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE", "unexpected fault address"} {
			if at := strings.Index(string(b), sign); at >= 0 {
				o.violation("log "+n.name+sign, "the log of %s has: %s", n.name, b[at:min(len(b), at+2000)])
			}
		}
	}
}
