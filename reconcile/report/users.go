package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// User is what keeps copies of an image: a use of one copy, or a need of a generation that its disk has no verified copy of.
type User struct {
	UUID string `json:"uuid"` // of the generation; "": any, because the users of a node cannot be read
	Node string `json:"node"`
	Disk string `json:"disk"`
	// Needed: the disk has no verified copy, so that the copies on all other disks are kept, unless the generation is declared.
	Needed bool      `json:"needed"`
	By     string    `json:"by"`
	Since  time.Time `json:"since,omitzero"` // by the clock of the node; zero: not known
	Ends   string    `json:"ends"`           // what ends it
}

// Users returns the users of an image, of one generation or of all if uuid is "": as the node knows them whose status it is.
func Users(s status.Status, name, uuid string) []User {
	users := []User{}
	for _, image := range s.Images {
		if image.Name != name || uuid != "" && image.UUID != uuid {
			continue
		}
		for _, c := range image.Copies {
			u := User{UUID: image.UUID, Node: c.Node, Disk: c.Disk}
			if c.InUse != "" {
				u.By, u.Ends = c.InUse, "the replica is deleted, or the process closes the file; if a replica is gone for good and its folder cannot be seen: "+cleanup(image, c, "--use-ended")
				users = append(users, u)
			}
			if c.Demand != nil && (c.InUse == "" || c.State != disk.Ready) {
				u.Needed, u.By, u.Since = true, c.Demand.By, c.Demand.Since
				u.Ends = "the replica is deleted, or the disk has a verified copy; if the claim is wrong: " + cleanup(image, c, "--despite-need "+c.Node)
				if c.Node == s.Node {
					u.Ends = "the replica is deleted, or the disk has a verified copy; if it is gone for good and its folder cannot be seen: " + cleanup(image, c, "--use-ended")
				}
				users = append(users, u)
			}
		}
	}
	for _, d := range s.Disks {
		if d.UsageUnknown != "" {
			users = append(users, User{Node: d.Node, Disk: d.Disk, By: "not known: " + d.UsageUnknown, Ends: "the metadata of the replica is repaired, or its folder is deleted"})
		}
	}
	return users
}

// cleanup returns the command that ends a use of a copy.
func cleanup(image status.ImageStatus, c status.CopyStatus, flag string) string {
	return fmt.Sprintf("backing-image cleanup %s --uuid %s --on %s/%s %s", image.Name, image.UUID, c.Node, c.Disk, flag)
}

// UsersTable returns users as a table.
func UsersTable(users []User) string {
	rows := [][]string{{"UUID", "ON", "USE", "BY", "SINCE", "ENDS WHEN"}}
	for _, u := range users {
		use, uuid, since := "used", u.UUID, "-"
		if u.Needed {
			use = "needed"
		}
		if uuid == "" {
			use, uuid = "unknown", "-"
		}
		if !u.Since.IsZero() {
			since = u.Since.UTC().Format(time.RFC3339)
		}
		rows = append(rows, []string{uuid, u.Node + "/" + u.Disk, use, u.By, since, u.Ends})
	}
	return strings.Join(Align(rows), "\n") + "\n"
}
