package report

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// ListEntry is one generation of an image. Its JSON is a stable interface: the JSON of Longhorn's
// backing image manager, with the fields title, virtualSize, disk and generations added.
type ListEntry struct {
	Name             string       `json:"name"`
	UUID             string       `json:"uuid"`
	Title            string       `json:"title,omitempty"` // as it is declared, for people
	Size             int64        `json:"size"`            // bytes; 0 means unknown
	VirtualSize      int64        `json:"virtualSize"`     // bytes of a volume of this image: differs from Size for qcow2; 0 means unknown
	ExpectedChecksum ident.Digest `json:"expectedChecksum"`
	Status           ListStatus   `json:"status"`
	Disk             string       `json:"disk"` // of the copy that the entry shows; "" means that there is no copy
	// Generations are the other generations of the image.
	Generations []ListEntry `json:"generations,omitempty"`
}

type ListStatus struct {
	State           model.State `json:"state"`
	CurrentChecksum string      `json:"currentChecksum"`
	// SendingReference is how many peers and clients read the copy now, if the copy is on the node of the daemon.
	SendingReference int    `json:"sendingReference"`
	ErrorMsg         string `json:"errorMsg"`
	// SenderManagerAddress is the address of the peer from which the node of the daemon receives the copy
	// now. "" means that it receives nothing.
	SenderManagerAddress string `json:"senderManagerAddress"`
	Progress             int    `json:"progress"` // 0..100; 100 is ready
}

// List returns an entry for each name. An entry shows the declared generation, or else a generation
// that is not surplus, and its best copy. The argument on has the names of the disks whose copies
// count. If on is empty, all copies count, and images without a copy have an entry, too.
func List(images []status.ImageStatus, on []string) map[string]ListEntry {
	byName := map[string][]status.ImageStatus{}
	for _, image := range images {
		byName[image.Name] = append(byName[image.Name], image)
	}
	list := make(map[string]ListEntry, len(byName))
	for name, images := range byName {
		if generations := status.Generations(images, name, on); len(generations) > 0 {
			list[name] = newListEntry(generations)
		}
	}
	return list
}

// Entry returns the entry of an image, or of a generation by <name>-<uuid>.
func Entry(images []status.ImageStatus, name string, on []string) (ListEntry, error) {
	generations := status.Generations(images, name, on)
	if len(generations) == 0 {
		return ListEntry{}, status.NoSuchImage(images, name, on)
	}
	return newListEntry(generations), nil
}

// VisibleImages returns the images of a status without the absent copies on other nodes. It changes the status.
func VisibleImages(s status.Status) []status.ImageStatus {
	for i, image := range s.Images {
		s.Images[i].Copies = slices.DeleteFunc(image.Copies, func(c status.CopyStatus) bool {
			return c.Node != s.Node && c.Absent()
		})
	}
	return s.Images
}

func newListEntry(generations []status.ImageStatus) ListEntry {
	image := generations[0]
	l := ListEntry{
		Name: image.Name, UUID: image.UUID, Title: text.Line(image.Title), ExpectedChecksum: image.Checksum,
		Status: ListStatus{State: model.Pending},
	}
	for i := range generations[1:] {
		l.Generations = append(l.Generations, newListEntry(generations[i+1:i+2]))
	}
	if len(image.Copies) == 0 {
		l.Status.ErrorMsg = text.Line(image.Message)
		return l
	}
	c := image.Copies[0]
	l.Disk, l.Size, l.VirtualSize = c.DiskName(), c.Size, c.VirtualSize
	if c.Size == 0 {
		l.Size = max(c.Total, 0)
	}
	l.Status = ListStatus{State: c.State, ErrorMsg: text.Line(c.Message), Progress: c.Progress, SendingReference: c.Sends, SenderManagerAddress: c.Sender}
	if c.State == model.Ready {
		l.Status.CurrentChecksum = c.SHA512.String()
	}
	return l
}

// ListTable returns the lines of a table with a line for each generation.
func ListTable(list map[string]ListEntry) []string {
	rows := [][]string{{"NAME", "UUID", "STATE", "PROGRESS", "SIZE", "VIRTUAL", "DISK", "MESSAGE"}}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		rows = append(rows, listRow(list[name]))
		for _, older := range list[name].Generations {
			rows = append(rows, listRow(older))
		}
	}
	return Align(rows)
}

func listRow(l ListEntry) []string {
	bytes, virtual, on := "-", "-", "-"
	if l.Size > 0 {
		bytes = Size(l.Size)
	}
	if l.VirtualSize > 0 {
		virtual = Size(l.VirtualSize)
	}
	if l.Disk != "" {
		on = l.Disk
	}
	return []string{l.Name, l.UUID, string(l.Status.State), fmt.Sprintf("%d%%", l.Status.Progress), bytes, virtual, on, text.Line(l.Status.ErrorMsg)}
}
