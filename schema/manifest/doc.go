// Package manifest converts manifests of Longhorn, Harvester, CDI and Kubernetes to the native form of
// the configuration.
//
// Detect finds the kind of a document. A File collects what the manifests of one file
// declare:
//
//   - definitions: a BackingImage, a Node, a Setting, a VolumeSnapshot;
//   - references: a StorageClass or a VolumeSnapshotContent, which names an image and
//     defines it only if no other document does;
//   - skipped documents, each with the reason.
//
// A VolumeSnapshot needs its class and its claim, which may be in other files, so Resolve
// combines them after all files were read. It also finds the BackingImage of each
// VirtualMachineImage: with it, the VirtualMachineImage is a reference, and without it, a
// definition.
//
// The caller validates each document with the CUE definition of its kind (CUE), and then
// calls Kind.Convert.
//
// Promises:
//
//   - A problem is reported with the field names of the manifest, because a Conversion
//     remembers the source of each native value.
//   - A skipped document never deletes what it declared before: Skipped.MayDeclare finds
//     the images.
//   - No message contains the value of a handle or an address, which may contain a token.
//
// Reading order: kind.go has the list of kinds, file.go and convert.go have File and
// Conversion, and each kind has a file of its own. resolve.go combines the manifests of all files,
// with snapshot.go, harvester.go and cdi.go. reference.go compares references, and handle.go reads bi:// handles.
package manifest
