package schema

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// The raw types are what the schema has, with its defaults filled in: where it
// takes a number or a text, there is an any.
type (
	rawSettings struct {
		CleanupWaitInterval             any
		RecoveryWaitInterval            any
		MinNumberOfCopies               any
		ConcurrentReplenishPerNodeLimit any
		PruneLimit                      any
		PruneConfirmed                  []string
		ScrubInterval                   any
		AllowLoopbackSources            bool
		Suspend                         *rawSuspend
	}
	rawSuspend struct{ Reason, By, Until string }
	rawNode    struct {
		Address                            string
		Tags                               []string
		AllowScheduling, EvictionRequested bool
		Disks                              map[string]rawDisk
	}
	rawDisk struct {
		Path                               string
		Tags                               []string
		StorageReserved                    any
		AllowScheduling, EvictionRequested bool
	}
	rawImage struct {
		Source                            rawSource
		Checksum, UUID, Format            string
		MinNumberOfCopies, BandwidthLimit any
		NodeSelector, DiskSelector, Disks []string
		Backup                            *rawBackup
		Suspend                           *rawSuspend
	}
	rawBackup struct {
		Target, Credentials, Compression string
		ConcurrentLimit                  any
	}
	rawSource struct {
		Download         *rawDownload
		Upload           *struct{}
		ExportFromVolume *struct {
			VolumeName, SnapshotName, Path, ExportType string
			Compress                                   bool
		}
		Restore *struct {
			BackupURL       string
			ConcurrentLimit any
			Credentials     string
		}
		Clone *struct{ BackingImage, Encryption, Secret string }
	}
	rawDownload struct {
		URL            string
		Mirrors        []string
		Credentials    string
		ChecksumURL    string
		PackedChecksum string
		Unpack         string
		MaxSize        any
	}
)

// decoder turns a valid thing into what the rest of the program takes, and
// collects what is wrong with it that a schema cannot say.
type decoder struct {
	verdict verdict
}

func (d *decoder) fault(at fieldPath, msg, hint string) {
	d.verdict.faults = append(d.verdict.faults, fault{path: at, msg: msg, hint: hint})
}

func (d *decoder) check(err error, at ...string) {
	if err != nil {
		d.fault(at, err.Error(), "")
	}
}

func decode(t task, v cue.Value) verdict {
	var d decoder
	switch t.section {
	case settingsSection:
		var raw rawSettings
		mustDecode(v, &raw)
		d.verdict.settings = d.settings(raw)
	case nodesSection:
		var raw rawNode
		mustDecode(v, &raw)
		d.verdict.node = d.node(raw)
	case imagesSection:
		var raw rawImage
		mustDecode(v, &raw)
		d.verdict.image = d.image(t.name, raw)
	}
	if len(d.verdict.faults) > 0 {
		return verdict{faults: d.verdict.faults, loopback: d.verdict.loopback}
	}
	return d.verdict
}

// mustDecode fills raw from a value that the schema accepted.
func mustDecode(v cue.Value, raw any) {
	if err := v.Decode(raw); err != nil {
		panic(fmt.Sprintf("schema: schema.cue and its Go types differ: %v", err))
	}
}

func (d *decoder) settings(raw rawSettings) *Settings {
	s := &Settings{AllowLoopbackSources: raw.AllowLoopbackSources, Suspend: d.suspension(raw.Suspend)}
	var err error
	s.CleanupWaitInterval, err = interval(raw.CleanupWaitInterval, time.Minute)
	d.check(err, "cleanupWaitInterval")
	s.RecoveryWaitInterval, err = interval(raw.RecoveryWaitInterval, time.Second)
	d.check(err, "recoveryWaitInterval")
	s.ScrubInterval, err = interval(raw.ScrubInterval, time.Nanosecond)
	d.check(err, "scrubInterval")
	s.MinNumberOfCopies, err = count(raw.MinNumberOfCopies)
	d.check(err, "minNumberOfCopies")
	s.ConcurrentReplenishPerNodeLimit, err = count(raw.ConcurrentReplenishPerNodeLimit)
	d.check(err, "concurrentReplenishPerNodeLimit")
	s.PruneLimit, err = pruneLimit(raw.PruneLimit)
	d.check(err, "pruneLimit")
	for i, text := range raw.PruneConfirmed {
		id, err := disk.ParseID(text)
		d.check(err, "pruneConfirmed", fmt.Sprintf("[%d]", i))
		s.PruneConfirmed = append(s.PruneConfirmed, id)
	}
	slices.SortFunc(s.PruneConfirmed, func(a, b disk.ID) int { return strings.Compare(a.String(), b.String()) })
	s.PruneConfirmed = slices.Compact(s.PruneConfirmed)
	return s
}

func pruneLimit(v any) (PruneLimit, error) {
	if s, ok := v.(string); ok {
		return parsePruneLimit(s)
	}
	n, err := count(v)
	return PruneCount(n), err
}

func (d *decoder) node(raw rawNode) *Node {
	n := &Node{
		Address: strings.TrimSuffix(raw.Address, "/"), Tags: sorted(raw.Tags),
		AllowScheduling: raw.AllowScheduling, EvictionRequested: raw.EvictionRequested,
		Disks: make(map[string]Disk, len(raw.Disks)),
	}
	d.address(raw.Address)
	for name, r := range raw.Disks {
		reserved, err := quantity(r.StorageReserved)
		d.check(err, "disks", name, "storageReserved")
		n.Disks[name] = Disk{
			Path: filepath.Clean(r.Path), Tags: sorted(r.Tags), StorageReserved: reserved,
			AllowScheduling: r.AllowScheduling, EvictionRequested: r.EvictionRequested,
		}
	}
	d.samePaths(n)
	return n
}

// samePaths finds disks of one node that are one folder.
func (d *decoder) samePaths(n *Node) {
	first := map[string]string{}
	for _, name := range sortedKeys(n.Disks) {
		p := n.Disks[name].Path
		if other, twice := first[p]; twice {
			d.fault(fieldPath{"disks", name, "path"}, fmt.Sprintf("is the path of %q too", other), "every disk has a path of its own")
			continue
		}
		first[p] = name
	}
}

// sorted returns the texts sorted and each once, so that their order in a file
// does not matter. No texts are nil.
func sorted(texts []string) []string {
	if len(texts) == 0 {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}
