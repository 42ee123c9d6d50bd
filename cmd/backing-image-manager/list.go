package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// listed is one image as backing-image list shows it: the shape that users of the
// original know, with disk and generations added. It is a stable interface.
type listed struct {
	Name             string       `json:"name"`
	UUID             string       `json:"uuid"`
	Size             int64        `json:"size"` // bytes; 0: not known
	ExpectedChecksum disk.Digest  `json:"expectedChecksum"`
	Status           listedStatus `json:"status"`
	Disk             string       `json:"disk"` // of the copy that answers; "": there is none
	// Generations are the other ones of the same name.
	Generations []listed `json:"generations,omitempty"`
}

type listedStatus struct {
	State                disk.State `json:"state"`
	CurrentChecksum      string     `json:"currentChecksum"`
	SendingReference     int        `json:"sendingReference"`
	ErrorMsg             string     `json:"errorMsg"`
	SenderManagerAddress string     `json:"senderManagerAddress"`
	Progress             int        `json:"progress"` // 0..100; 100 is ready
}

// listImages gives each name the generation that answers to it: the declared one,
// or else the one that was not given up. Of its copies the best answers. on names
// the disks whose copies count; none: all do, and images without a copy are listed
// too.
func listImages(images []reconcile.ImageStatus, on []string) map[string]listed {
	byName := map[string][]reconcile.ImageStatus{}
	for _, image := range images {
		image.Copies = copiesOn(image.Copies, on)
		if len(on) == 0 || len(image.Copies) > 0 {
			byName[image.Name] = append(byName[image.Name], image)
		}
	}
	list := make(map[string]listed, len(byName))
	for name, generations := range byName {
		slices.SortFunc(generations, compareGenerations)
		first := list1(generations[0])
		for _, other := range generations[1:] {
			first.Generations = append(first.Generations, list1(other))
		}
		list[name] = first
	}
	return list
}

// listable are the images of a status without the copies that other nodes have yet to
// make: what is declared is listed for the asked node.
func listable(s reconcile.Status) []reconcile.ImageStatus {
	for i, image := range s.Images {
		s.Images[i].Copies = slices.DeleteFunc(image.Copies, func(c reconcile.CopyStatus) bool {
			return c.Node != s.Node && c.Absent()
		})
	}
	return s.Images
}

func copiesOn(copies []reconcile.CopyStatus, on []string) []reconcile.CopyStatus {
	kept := []reconcile.CopyStatus{}
	for _, c := range copies {
		if len(on) == 0 || slices.Contains(on, place(c)) {
			kept = append(kept, c)
		}
	}
	slices.SortStableFunc(kept, compareCopies)
	return kept
}

// place names the disk of a copy: NODE/DISK, or its path when no node is asked.
func place(c reconcile.CopyStatus) string {
	if c.Node == "" {
		return c.Disk
	}
	return c.Node + "/" + c.Disk
}

// stateOrder has the best state first.
var stateOrder = []disk.State{disk.Ready, disk.InProgress, disk.Starting, disk.Pending, disk.Unknown, disk.Failed}

func compareCopies(a, b reconcile.CopyStatus) int {
	return cmp.Or(
		cmp.Compare(slices.Index(stateOrder, a.State), slices.Index(stateOrder, b.State)),
		cmp.Compare(b.Progress, a.Progress),
		cmp.Compare(place(a), place(b)))
}

// compareGenerations expects copies in the order of compareCopies.
func compareGenerations(a, b reconcile.ImageStatus) int {
	rank := func(image reconcile.ImageStatus) int {
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

func list1(image reconcile.ImageStatus) listed {
	l := listed{
		Name: image.Name, UUID: image.UUID, ExpectedChecksum: image.Expected,
		Status: listedStatus{State: disk.Pending},
	}
	if len(image.Copies) == 0 {
		l.Status.ErrorMsg = oneLine(image.Message)
		return l
	}
	c := image.Copies[0]
	l.Disk, l.Size = place(c), c.Size
	if c.Size == 0 {
		l.Size = max(c.Total, 0)
	}
	l.Status = listedStatus{State: c.State, ErrorMsg: oneLine(c.Message), Progress: c.Progress}
	if c.State == disk.Ready {
		l.Status.CurrentChecksum = c.SHA512.String()
	}
	return l
}

// listTable shows a list for people, a line for each generation.
func listTable(list map[string]listed) string {
	rows := [][]string{{"NAME", "UUID", "STATE", "PROGRESS", "SIZE", "DISK", "MESSAGE"}}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		rows = append(rows, listRow(list[name]))
		for _, older := range list[name].Generations {
			rows = append(rows, listRow(older))
		}
	}
	return strings.Join(align(rows), "\n") + "\n"
}

func listRow(l listed) []string {
	bytes, on := "-", "-"
	if l.Size > 0 {
		bytes = size(l.Size)
	}
	if l.Disk != "" {
		on = l.Disk
	}
	return []string{l.Name, l.UUID, string(l.Status.State), fmt.Sprintf("%d%%", l.Status.Progress), bytes, on, oneLine(l.Status.ErrorMsg)}
}
