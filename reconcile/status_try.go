package reconcile

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TryStatus is what is remembered of a failure.
type TryStatus struct {
	Action   Kind      `json:"action,omitempty"` // that failed; "": whatever is tried
	Attempts int       `json:"attempts"`         // 0: it was only put off
	Since    time.Time `json:"since,omitzero"`   // of the first failure in a row
	Until    time.Time `json:"until,omitzero"`   // of the next attempt
	Message  string    `json:"message"`
	Final    bool      `json:"final,omitempty"` // only another declaration helps
	Space    int64     `json:"space,omitempty"` // free bytes that the next attempt waits for
	Disk     bool      `json:"disk,omitempty"`  // the trouble is the disk's
	Link     bool      `json:"link,omitempty"`  // it may be the way from the node to the source
	// Unrepairable: a repair failed, so the copy has to be replaced.
	Unrepairable bool `json:"unrepairable,omitempty"`
	// Suspects are copies, as NODE/DISK/FOLDER, that were read and gave other bytes
	// than their own.
	Suspects []string `json:"suspects,omitempty"`
}

func tryStatus(t Try) *TryStatus {
	s := &TryStatus{
		Action: t.Kind, Attempts: t.Attempts, Since: t.Since, Until: t.Until, Message: t.Message,
		Final: t.Final, Space: t.Space, Disk: t.Disk, Link: t.Link, Unrepairable: t.Unrepairable,
	}
	for _, key := range t.Suspects {
		s.Suspects = append(s.Suspects, key.String())
	}
	return s
}

// try is what tryStatus was made of.
func (s TryStatus) try() (Try, error) {
	t := Try{
		Kind: s.Action, Attempts: s.Attempts, Since: s.Since, Until: s.Until, Message: s.Message,
		Final: s.Final, Space: s.Space, Disk: s.Disk, Link: s.Link, Unrepairable: s.Unrepairable,
	}
	for _, text := range s.Suspects {
		key, err := parseKey(text)
		if err != nil {
			return Try{}, err
		}
		t.Suspects = append(t.Suspects, key)
	}
	return t, nil
}

// parseKey reads <node>/<disk>/<folder>.
func parseKey(text string) (Key, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return Key{}, fmt.Errorf("%q is not NODE/DISK/FOLDER", text)
	}
	id, err := disk.ParseID(parts[2])
	return Key{schema.DiskRef{Node: parts[0], Disk: parts[1]}, id}, err
}
