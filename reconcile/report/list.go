package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// ListEntry is one image as backing-image list shows it: the shape that users of the
// original know, with disk and generations added. It is a stable interface.
type ListEntry struct {
	Name             string      `json:"name"`
	UUID             string      `json:"uuid"`
	Size             int64       `json:"size"` // bytes; 0: not known
	ExpectedChecksum disk.Digest `json:"expectedChecksum"`
	Status           ListStatus  `json:"status"`
	Disk             string      `json:"disk"` // of the copy that answers; "": there is none
	// Generations are the other ones of the same name.
	Generations []ListEntry `json:"generations,omitempty"`
}

type ListStatus struct {
	State                disk.State `json:"state"`
	CurrentChecksum      string     `json:"currentChecksum"`
	SendingReference     int        `json:"sendingReference"`
	ErrorMsg             string     `json:"errorMsg"`
	SenderManagerAddress string     `json:"senderManagerAddress"`
	Progress             int        `json:"progress"` // 0..100; 100 is ready
}

// List gives each name the generation that answers to it: the declared one,
// or else the one that was not given up. Of its copies the best answers. on names
// the disks whose copies count; none: all do, and images without a copy are listed
// too.
func List(images []status.ImageStatus, on []string) map[string]ListEntry {
	byName := map[string][]status.ImageStatus{}
	for _, image := range images {
		image.Copies = CopiesOn(image.Copies, on)
		if len(on) == 0 || len(image.Copies) > 0 {
			byName[image.Name] = append(byName[image.Name], image)
		}
	}
	list := make(map[string]ListEntry, len(byName))
	for name, generations := range byName {
		slices.SortFunc(generations, CompareGenerations)
		first := newListEntry(generations[0])
		for _, other := range generations[1:] {
			first.Generations = append(first.Generations, newListEntry(other))
		}
		list[name] = first
	}
	return list
}

// VisibleImages are the images of a status without the copies that other nodes have yet to
// make: what is declared is listed for the asked node.
func VisibleImages(s status.Status) []status.ImageStatus {
	for i, image := range s.Images {
		s.Images[i].Copies = slices.DeleteFunc(image.Copies, func(c status.CopyStatus) bool {
			return c.Node != s.Node && c.Absent()
		})
	}
	return s.Images
}

func CopiesOn(copies []status.CopyStatus, on []string) []status.CopyStatus {
	kept := []status.CopyStatus{}
	for _, c := range copies {
		if len(on) == 0 || slices.Contains(on, DiskName(c)) {
			kept = append(kept, c)
		}
	}
	slices.SortStableFunc(kept, compareCopies)
	return kept
}

// DiskName names the disk of a copy: NODE/DISK, or its path when no node is asked.
func DiskName(c status.CopyStatus) string {
	if c.Node == "" {
		return c.Disk
	}
	return c.Node + "/" + c.Disk
}

// stateOrder has the best state first.
var stateOrder = []disk.State{disk.Ready, disk.InProgress, disk.Starting, disk.Pending, disk.Unknown, disk.Failed}

func compareCopies(a, b status.CopyStatus) int {
	return cmp.Or(
		cmp.Compare(slices.Index(stateOrder, a.State), slices.Index(stateOrder, b.State)),
		cmp.Compare(b.Progress, a.Progress),
		cmp.Compare(DiskName(a), DiskName(b)))
}

// CompareGenerations expects copies in the order of compareCopies.
func CompareGenerations(a, b status.ImageStatus) int {
	rank := func(image status.ImageStatus) int {
		switch {
		case image.Declared:
			return 0
		case len(image.Copies) > 0 && image.Copies[0].Unwanted.IsZero():
			return 1
		}
		return 2
	}
	if n := cmp.Compare(rank(a), rank(b)); n != 0 {
		return n
	}
	if len(a.Copies) > 0 && len(b.Copies) > 0 {
		stateA, stateB := slices.Index(stateOrder, a.Copies[0].State), slices.Index(stateOrder, b.Copies[0].State)
		if n := cmp.Compare(stateA, stateB); n != 0 {
			return n
		}
	}
	return cmp.Compare(a.UUID, b.UUID)
}

func newListEntry(image status.ImageStatus) ListEntry {
	l := ListEntry{
		Name: image.Name, UUID: image.UUID, ExpectedChecksum: image.Expected,
		Status: ListStatus{State: disk.Pending},
	}
	if len(image.Copies) == 0 {
		l.Status.ErrorMsg = OneLine(image.Message)
		return l
	}
	c := image.Copies[0]
	l.Disk, l.Size = DiskName(c), c.Size
	if c.Size == 0 {
		l.Size = max(c.Total, 0)
	}
	l.Status = ListStatus{State: c.State, ErrorMsg: OneLine(c.Message), Progress: c.Progress}
	if c.State == disk.Ready {
		l.Status.CurrentChecksum = c.SHA512.String()
	}
	return l
}

// ListTable shows a list for people, a line for each generation.
func ListTable(list map[string]ListEntry) string {
	rows := [][]string{{"NAME", "UUID", "STATE", "PROGRESS", "SIZE", "DISK", "MESSAGE"}}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		rows = append(rows, listRow(list[name]))
		for _, older := range list[name].Generations {
			rows = append(rows, listRow(older))
		}
	}
	return strings.Join(Align(rows), "\n") + "\n"
}

func listRow(l ListEntry) []string {
	bytes, on := "-", "-"
	if l.Size > 0 {
		bytes = Size(l.Size)
	}
	if l.Disk != "" {
		on = l.Disk
	}
	return []string{l.Name, l.UUID, string(l.Status.State), fmt.Sprintf("%d%%", l.Status.Progress), bytes, on, OneLine(l.Status.ErrorMsg)}
}

// FindEntry finds an image by its name, or a generation by <name>-<uuid>.
func FindEntry(list map[string]ListEntry, name string) (ListEntry, error) {
	if one, ok := list[name]; ok {
		return one, nil
	}
	for _, one := range list {
		for _, g := range append([]ListEntry{one}, one.Generations...) {
			if g.Name+"-"+g.UUID == name {
				g.Generations = nil
				return g, nil
			}
		}
	}
	if len(list) == 0 {
		return ListEntry{}, errors.New("no image " + name + ": there is none at all")
	}
	return ListEntry{}, fmt.Errorf("no image %s: there are %s", name, strings.Join(slices.Sorted(maps.Keys(list)), ", "))
}
