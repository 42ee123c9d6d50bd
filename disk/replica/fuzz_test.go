package replica

import (
	"strings"
	"testing"
)

// FuzzParseLayerMeta checks for any bytes that parseLayerMeta does not panic, and that Parent is the
// name of a snapshot in the same folder.
func FuzzParseLayerMeta(f *testing.F) {
	f.Add([]byte(`{"Name":"volume-head-002.img","Parent":"volume-snap-abc.img","Removed":false,"UserCreated":false,"Created":"2024-01-01T00:00:00Z","Labels":null}`))
	f.Add([]byte(`{"Parent":""}`))
	f.Add([]byte(`{"parent":"volume-snap-../x.img","Parent":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseLayerMeta(data)
		if err != nil || m.Parent == "" {
			return
		}
		if strings.ContainsAny(m.Parent, "/\x00\n") || !strings.HasPrefix(m.Parent, snapshotPrefix) || !strings.HasSuffix(m.Parent, imageSuffix) || len(m.Parent) > 255 {
			t.Errorf("parent is %q", m.Parent)
		}
	})
}

// FuzzSnapshotFile checks for any name that it is rejected, or that the file name is a single path
// element.
func FuzzSnapshotFile(f *testing.F) {
	f.Add("s01")
	f.Add("../s01")
	f.Fuzz(func(t *testing.T, name string) {
		file, err := snapshotFile(name)
		if err == nil && (strings.ContainsAny(file, "/\x00") || file == "." || file == "..") {
			t.Errorf("%q is %q", name, file)
		}
	})
}
