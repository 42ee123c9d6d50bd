package ident

import (
	"testing"
)

// TestParseDiskRef: exactly two names make a disk.
func TestParseDiskRef(t *testing.T) {
	want := DiskRef{Node: "node1", Disk: "disk1"}
	if got, err := ParseDiskRef(want.String()); err != nil || got != want {
		t.Errorf("ParseDiskRef(%s) = %v, %v", want, got, err)
	}
	for _, text := range []string{"", "node1", "/disk1", "node1/", "node1/disk1/copy"} {
		if got, err := ParseDiskRef(text); err == nil {
			t.Errorf("ParseDiskRef(%q) = %v, want an error", text, got)
		}
	}
}
