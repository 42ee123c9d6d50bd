package report

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// User is what keeps copies of an image: a use of one copy, or a need of a generation.
type User struct {
	UUID string `json:"uuid"` // of the generation; "" means any generation, because the users on the disk cannot be read
	Node string `json:"node"`
	Disk string `json:"disk"`
	// Needed reports whether this is a need. If the generation is not declared, the copies on all other disks are kept.
	Needed bool      `json:"needed"`
	By     string    `json:"by"`
	Since  time.Time `json:"since,omitzero"` // by the clock of the node; zero means unknown
	Ends   string    `json:"ends"`           // what ends the use or the need
}

// Users returns the users of generations of an image, as the node of the status s knows them.
func Users(s status.Status, generations []status.ImageStatus) []User {
	users := []User{}
	for _, image := range generations {
		for _, c := range image.Copies {
			u := User{UUID: image.UUID, Node: c.Node, Disk: c.Disk}
			cleanup := fmt.Sprintf("backing-image cleanup %s --uuid %s", image.Name, image.UUID)
			byHand := fmt.Sprintf("if the replica is gone for good and its folder cannot be seen, run on %s: %s --use-ended", c.Node, cleanup)
			if c.UsedBy != "" {
				u.By, u.Ends = c.UsedBy, "the replica is deleted, or the process closes the file; "+byHand
				users = append(users, u)
			}
			if c.Need != nil && (c.UsedBy == "" || c.State != model.Ready) {
				u.Needed, u.By, u.Since = true, c.Need.By, c.Need.Since
				if c.Node != s.Node {
					byHand = fmt.Sprintf("if the claim is wrong, run: %s --on NODE/DISK --despite-need %s", cleanup, c.Node)
				}
				u.Ends = "the replica is deleted, or the disk has a verified copy; " + byHand
				users = append(users, u)
			}
		}
	}
	for _, d := range s.Disks {
		if d.UsageUnknown != "" {
			users = append(users, User{Node: d.Node, Disk: d.Name, By: "not known: " + d.UsageUnknown, Ends: "the metadata of the replica is repaired, or its folder is deleted"})
		}
	}
	return users
}

// UsersTable returns the lines of a table of users.
func UsersTable(users []User) []string {
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
	return Align(rows)
}
