// Package schema loads the configuration of a config directory.
//
// schema.cue, with manifest.cue for the manifests of Kubernetes, defines what may be
// declared. Config and the types below it are the result for the rest of the program. A
// Loader does this for each snapshot of the directory:
//
//	for each file that changed:
//	    parse it into values with positions (YAML and JSON: document; CUE: sandbox)
//	    split it into definitions: one setting, one node, one image each
//	for each definition that changed:
//	    a manifest: validate it with manifest.cue, and convert it to the native form
//	    find unknown and duplicate fields, missing values and missing quotes (structure.go)
//	    validate the rest with CUE (check.go)
//	    convert it to Go, and check what CUE cannot (decode.go, address.go)
//	merge the valid definitions, and the last valid ones of those that are broken (merge.go)
//	let references define images that nothing else defines
//	check the whole: clones, disks, addresses, duplicates, references (crosscheck.go)
//
// Promises:
//
//  1. A mistake is one line with the position and the path in the user's file. CUE
//     finds the path, and @want in schema.cue has the words of the message.
//  2. A mistake affects one definition. Only a mistake that hides an unknown number of
//     definitions, such as a file that cannot be parsed, affects a file.
//  3. A running manager uses the last valid content of a broken definition. At
//     the start there is none: then the image is not used, and without
//     settings, nodes or a whole file only observing is allowed.
//  4. While there is any mistake there is no digest, and nothing may be
//     deleted.
//  5. A document that is skipped never deletes what it declared before: see
//     Undecided.MayDeclare.
//  6. A CUE context keeps everything that it evaluated, so each batch has its own, and
//     no value of CUE outlives it. An evaluation of CUE cannot be interrupted, so the .cue
//     files of a user are evaluated in a child process with limits.
//  7. No message contains a password or a token: values that may contain one are
//     marked private in schema.cue.
//
// Read config.go and image.go first, then load.go, file.go, check.go and merge.go.
package schema
