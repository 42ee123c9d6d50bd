package manifest

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var snapshotContentKind = &Kind{
	Group: snapshotGroup, Versions: snapshotVersions, Name: "VolumeSnapshotContent", Definition: "#VolumeSnapshotContent",
	shared: true, Reference: true, ImagePath: handlePath.With(handleImage),
	read: readSnapshotContent, convert: convertSnapshotContent,
}

var handlePath = path("spec.source.snapshotHandle")

// readSnapshotContent reads a VolumeSnapshotContent. It refers to an image if its handle
// begins with bi://.
func readSnapshotContent(f *File, m manifest) {
	handle, _ := m.doc.Find(handlePath, m.doc.Pos)
	by := m.doc.TextAt("spec", "driver")
	switch {
	case by != "" && by != driver:
		f.Skip(m.doc, "is of another driver than "+driver)
		return
	case handle == nil && m.doc.TextAt("spec", "source", "volumeHandle") != "":
		f.Skip(m.doc, "was made by Kubernetes for a VolumeSnapshot")
		return
	case handle != nil && isVolumeHandle(handle.Text):
		f.Skip(m.doc, "is of a snapshot or backup of a volume")
		return
	}
	m, ok := f.named(m)
	switch {
	case !ok:
	case handle == nil:
		_, pos := m.doc.Find(handlePath, m.pos)
		f.AddProblem(pos, handlePath, "is missing", handleHint)
	case handle.Kind != document.Text:
		f.AddProblem(handle.Pos, handlePath, "must be a string, not "+handle.Kind.String(), handleHint)
	default:
		m.pos = handle.Pos
		f.readHandle(m, handle)
	}
}

// readHandle replaces the text of a handle by the mapping of its values.
func (f *File) readHandle(m manifest, v *document.Value) {
	h, problems := parseHandle(v.Text)
	if len(problems) == 0 {
		problems = h.problems()
	}
	for i := range problems {
		problems[i].Path = append(slices.Clip(handlePath), problems[i].Path...)
	}
	if h.BackingImage == "" { // the image is unknown, so the problems are those of the file
		for _, p := range problems {
			f.AddProblem(v.Pos, p.Path, p.Message, p.Hint)
		}
		return
	}
	*v = *h.value(v.Pos)
	d := f.refer(m, LonghornName(h.BackingImage))
	d.Problems = append(d.Problems, problems...)
}

func convertSnapshotContent(c *converter) {
	c.imageName(handlePath.With(handleImage))
	c.reference(handlePath.With(handleType), handlePath.With(handleParameters), handlePath.With(handleChecksum))
	r := c.Reference
	if r.incomplete == "" && r.sourceType == exportFromVolume && r.parameters["export-type"] == "" {
		r.incomplete = "export-type is not provided"
	}
}
